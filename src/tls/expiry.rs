//! Stages towards the end of a certificate; each is reported once.

use std::collections::BTreeMap;

use super::files::Key;

const DAY: i64 = 24 * 60 * 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpiryStage {
    /// More than 30 days away.
    Far,
    /// At most 30 days.
    Month,
    /// At most 7 days.
    Week,
    /// At most a day.
    Day,
    Expired,
}

impl ExpiryStage {
    /// `left`: seconds until the certificate expires.
    pub fn of(left: i64) -> Self {
        match left {
            i64::MIN..=0 => Self::Expired,
            _ if left <= DAY => Self::Day,
            _ if left <= 7 * DAY => Self::Week,
            _ if left <= 30 * DAY => Self::Month,
            _ => Self::Far,
        }
    }
}

/// Stages that were reported already, by configuration key.
#[derive(Debug, Default)]
pub struct Reminder {
    reported: BTreeMap<Key, ExpiryStage>,
}

impl Reminder {
    /// Returns a stage to report: one that is nearer to the end than the stage before. A renewed certificate starts again.
    /// `left`: seconds until the first certificate of the file expires.
    pub fn advance(&mut self, key: &Key, left: i64) -> Option<ExpiryStage> {
        let stage = ExpiryStage::of(left);
        let before = self
            .reported
            .insert(key.clone(), stage)
            .unwrap_or(ExpiryStage::Far);
        (stage > before).then_some(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_said_once_and_again_after_a_renewal() {
        let mut reminder = Reminder::default();
        let mut said = Vec::new();
        for left in [
            31 * DAY,
            30 * DAY,
            8 * DAY,
            7 * DAY,
            2 * DAY,
            DAY,
            1,
            0,
            -DAY,
        ] {
            said.extend(reminder.advance(&"a".into(), left));
        }
        assert_eq!(
            said,
            [
                ExpiryStage::Month,
                ExpiryStage::Week,
                ExpiryStage::Day,
                ExpiryStage::Expired
            ]
        );
        assert_eq!(reminder.advance(&"a".into(), 365 * DAY), None);
        assert_eq!(
            reminder.advance(&"a".into(), 6 * DAY),
            Some(ExpiryStage::Week)
        );
    }

    #[test]
    fn files_are_told_apart() {
        let mut reminder = Reminder::default();
        assert_eq!(
            reminder.advance(&"a".into(), -1),
            Some(ExpiryStage::Expired)
        );
        assert_eq!(
            reminder.advance(&"b".into(), -1),
            Some(ExpiryStage::Expired)
        );
        assert_eq!(reminder.advance(&"a".into(), -2), None);
    }
}
