//! Decides what becomes of the contents of the configuration file. Pure.

use crate::config::Problem;

/// What a reading gave.
type Contents = Result<String, Problem>;

/// The contents of a file that is read again and again.
#[derive(Debug)]
pub(super) struct ConfigContents {
    in_use: String,
    /// Other contents, as the last reading found them.
    last: Option<Contents>,
    /// Contents that could not be used, and why.
    failing: Option<(Contents, Vec<Problem>)>,
}

/// What a reading means.
#[derive(Debug, PartialEq)]
pub(super) enum Check<T> {
    /// The contents are those in use.
    Unchanged,
    /// The contents are those in use again, after others that could not be used.
    Restored,
    /// Other contents than at the last reading: perhaps they are still being written.
    Settling,
    /// New contents, in use from now on.
    New(T),
    /// Contents that cannot be used.
    Failed(Vec<Problem>),
    /// Contents that still cannot be used.
    StillFailing(Vec<Problem>),
}

impl ConfigContents {
    pub(super) fn new(in_use: String) -> Self {
        Self {
            in_use,
            last: None,
            failing: None,
        }
    }

    /// `parse` gets contents that were found twice.
    pub(super) fn check<T>(
        &mut self,
        found: Contents,
        parse: impl FnOnce(&str) -> Result<T, Vec<Problem>>,
    ) -> Check<T> {
        if found.as_ref() == Ok(&self.in_use) {
            self.last = None;
            return match self.failing.take() {
                Some(_) => Check::Restored,
                None => Check::Unchanged,
            };
        }
        if self.last.as_ref() != Some(&found) {
            self.last = Some(found);
            return Check::Settling;
        }
        if let Some((_, problems)) = self.failing.as_ref().filter(|(of, _)| *of == found) {
            return Check::StillFailing(problems.clone());
        }
        let parsed = match &found {
            Ok(text) => parse(text).map(|new| (new, text.clone())),
            Err(problem) => Err(vec![problem.clone()]),
        };
        match parsed {
            Ok((new, text)) => {
                *self = Self::new(text);
                Check::New(new)
            }
            Err(problems) => {
                self.failing = Some((found, problems.clone()));
                Check::Failed(problems)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are right, anything else is wrong, and an empty text stands for a file that is gone.
    struct File(ConfigContents);

    impl File {
        fn with(text: &str) -> Self {
            Self(ConfigContents::new(text.to_owned()))
        }

        fn check(&mut self, text: &str) -> Check<u32> {
            let found = match text {
                "" => Err(problem("gone")),
                text => Ok(text.to_owned()),
            };
            let parse = |text: &str| text.parse().map_err(|_| vec![problem(text)]);
            self.0.check(found, parse)
        }
    }

    fn problem(message: &str) -> Problem {
        Problem {
            key: String::new(),
            line: None,
            message: message.to_owned(),
        }
    }

    fn failed(message: &str) -> Check<u32> {
        Check::Failed(vec![problem(message)])
    }

    fn still_failing(message: &str) -> Check<u32> {
        Check::StillFailing(vec![problem(message)])
    }

    #[test]
    fn new_contents_are_used_once_they_were_found_twice() {
        let mut file = File::with("1");
        assert_eq!(file.check("1"), Check::Unchanged);
        assert_eq!(file.check("2"), Check::Settling);
        assert_eq!(file.check("2"), Check::New(2));
        assert_eq!(file.check("2"), Check::Unchanged);
        assert_eq!(file.check("1"), Check::Settling);
        assert_eq!(file.check("1"), Check::New(1));
    }

    #[test]
    fn a_file_that_grows_is_not_used_although_every_part_of_it_would_do() {
        let mut file = File::with("1");
        for text in ["2", "23", "234"] {
            assert_eq!(file.check(text), Check::Settling);
        }
        assert_eq!(file.check("234"), Check::New(234));
    }

    #[test]
    fn a_wrong_file_and_a_missing_one_are_told_once() {
        let mut file = File::with("1");
        for (text, why) in [("x", "x"), ("", "gone"), ("y", "y")] {
            assert_eq!(file.check(text), Check::Settling);
            assert_eq!(file.check(text), failed(why));
            assert_eq!(file.check(text), still_failing(why));
        }
        assert_eq!(file.check("1"), Check::Restored);
        assert_eq!(file.check("1"), Check::Unchanged);
    }

    #[test]
    fn a_wrong_file_that_comes_and_goes_is_told_once_until_another_is_used() {
        let mut file = File::with("1");
        for text in ["x", "x", "y", "x"] {
            file.check(text);
        }
        assert_eq!(file.check("x"), still_failing("x"));
        file.check("2");
        assert_eq!(file.check("2"), Check::New(2));
        file.check("x");
        assert_eq!(file.check("x"), failed("x"));
    }
}
