//! What becomes of the contents of files that are read again and again. Pure.

/// Contents that are read again and again: `C` is what is compared.
pub struct Contents<C> {
    in_use: C,
    /// Other contents, as the last reading found them.
    last: Option<C>,
    /// The last contents that could not be used.
    failing: Option<C>,
}

/// What a reading means.
#[derive(Debug, PartialEq)]
pub enum Check<T, E> {
    /// The contents are as before, or perhaps still being written.
    NothingNew,
    /// The contents are those in use again, after others that could not be used.
    Restored,
    /// New contents, in use from now on.
    New(T),
    /// Contents that cannot be used.
    Failed(E),
}

impl<C: PartialEq + Clone> Contents<C> {
    pub fn new(in_use: C) -> Self {
        Self {
            in_use,
            last: None,
            failing: None,
        }
    }

    /// `make` gets contents that were found twice.
    pub fn check<T, E>(&mut self, found: C, make: impl FnOnce(&C) -> Result<T, E>) -> Check<T, E> {
        if found == self.in_use {
            self.last = None;
            return match self.failing.take() {
                Some(_) => Check::Restored,
                None => Check::NothingNew,
            };
        }
        let is_settled = self.last.as_ref() == Some(&found);
        if !is_settled || self.failing.as_ref() == Some(&found) {
            self.last = Some(found);
            return Check::NothingNew;
        }
        match make(&found) {
            Ok(new) => {
                *self = Self::new(found);
                Check::New(new)
            }
            Err(error) => {
                self.failing = Some(found);
                Check::Failed(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are right, anything else is wrong, and an empty text stands for a file that is gone.
    struct File(Contents<Result<String, String>>);

    impl File {
        fn with(text: &str) -> Self {
            Self(Contents::new(Ok(text.to_owned())))
        }

        fn check(&mut self, text: &str) -> Check<u32, String> {
            let found = match text {
                "" => Err("gone".to_owned()),
                text => Ok(text.to_owned()),
            };
            let parse = |found: &Result<String, String>| {
                let text = found.clone()?;
                text.parse().map_err(|_| text)
            };
            self.0.check(found, parse)
        }
    }

    #[test]
    fn new_contents_are_used_once_they_were_found_twice() {
        let mut file = File::with("1");
        assert_eq!(file.check("1"), Check::NothingNew);
        assert_eq!(file.check("2"), Check::NothingNew);
        assert_eq!(file.check("2"), Check::New(2));
        assert_eq!(file.check("2"), Check::NothingNew);
        assert_eq!(file.check("1"), Check::NothingNew);
        assert_eq!(file.check("1"), Check::New(1));
    }

    #[test]
    fn a_file_that_grows_is_not_used_although_every_part_of_it_would_do() {
        let mut file = File::with("1");
        for text in ["2", "23", "234"] {
            assert_eq!(file.check(text), Check::NothingNew);
        }
        assert_eq!(file.check("234"), Check::New(234));
    }

    #[test]
    fn a_wrong_file_and_a_missing_one_are_told_once() {
        let mut file = File::with("1");
        for (text, why) in [("x", "x"), ("", "gone"), ("y", "y")] {
            assert_eq!(file.check(text), Check::NothingNew);
            assert_eq!(file.check(text), Check::Failed(why.to_owned()));
            assert_eq!(file.check(text), Check::NothingNew);
        }
        assert_eq!(file.check("1"), Check::Restored);
        assert_eq!(file.check("1"), Check::NothingNew);
    }

    #[test]
    fn a_wrong_file_that_comes_and_goes_is_told_once_until_another_is_used() {
        let mut file = File::with("1");
        for text in ["x", "x", "y", "x"] {
            file.check(text);
        }
        assert_eq!(file.check("x"), Check::NothingNew);
        file.check("2");
        assert_eq!(file.check("2"), Check::New(2));
        file.check("x");
        assert_eq!(file.check("x"), Check::Failed("x".to_owned()));
    }
}
