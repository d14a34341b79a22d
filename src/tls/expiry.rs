//! Certificates that are about to expire: who looks after them is told in time, once for each step.

use std::collections::BTreeMap;

const DAY: i64 = 24 * 60 * 60;

/// How near a certificate's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// More than 30 days away.
    Far,
    /// At most 30 days.
    Month,
    /// At most 7 days.
    Week,
    /// At most a day.
    Day,
    /// It is over.
    Expired,
}

impl Step {
    /// With so many seconds left.
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

/// What was said already of some files, by the keys that name them.
#[derive(Debug, Default)]
pub struct Reminder {
    said: BTreeMap<&'static str, Step>,
}

impl Reminder {
    /// Whether something is to be said now of a file whose first certificate ends in so many seconds: after a step towards
    /// its end. With a new certificate it begins anew.
    pub fn step(&mut self, key: &'static str, left: i64) -> Option<Step> {
        let step = Step::of(left);
        let before = self.said.insert(key, step).unwrap_or(Step::Far);
        (step > before).then_some(step)
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
            said.extend(reminder.step("a", left));
        }
        assert_eq!(said, [Step::Month, Step::Week, Step::Day, Step::Expired]);
        assert_eq!(reminder.step("a", 365 * DAY), None);
        assert_eq!(reminder.step("a", 6 * DAY), Some(Step::Week));
    }

    #[test]
    fn files_are_told_apart() {
        let mut reminder = Reminder::default();
        assert_eq!(reminder.step("a", -1), Some(Step::Expired));
        assert_eq!(reminder.step("b", -1), Some(Step::Expired));
        assert_eq!(reminder.step("a", -2), None);
    }
}
