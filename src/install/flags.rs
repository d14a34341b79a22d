//! kube-apiserver's flags, read as its library (pflag) reads them. Pure.

/// Name and value of each flag, in the order of the command line.
pub(super) struct Flags(Vec<(String, String)>);

impl Flags {
    /// `words`: what follows the program's name. kube-apiserver takes no words that belong to no flag, so one without `--` is
    /// the value of the flag before it.
    pub(super) fn read(words: &[String]) -> Self {
        let mut flags = Vec::new();
        let mut words = words.iter().map(|word| word.trim()).peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let next = words.next_if(|next| !next.starts_with("--"));
                    (flag, next.unwrap_or("true").to_owned())
                }
            };
            // Kubernetes takes both spellings.
            flags.push((name.replace('_', "-"), value));
        }
        Self(flags)
    }

    /// The value that counts; an empty one is none.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.each(name).last().filter(|value| !value.is_empty())
    }

    /// The values of each time that it is given, one after the other.
    pub(super) fn each<'f>(&'f self, name: &str) -> impl Iterator<Item = &'f str> {
        let given = self.0.iter().filter(move |(flag, _)| flag == name);
        given.map(|(_, value)| value.as_str())
    }

    /// The items of a list, which may be given in several parts.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let parts = self.each(name).flat_map(|value| value.split(','));
        let items = parts.map(|item| item.trim().trim_matches('"'));
        let items = items.filter(|item| !item.is_empty());
        items.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Flags {
        Flags::read(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn both_ways_of_giving_a_value_are_read_and_the_last_one_counts() {
        let flags = read(&[
            "--secure-port=6443",
            "--bind-address",
            "10.0.0.1",
            "--allow-privileged",
            "--secure_port=7443",
            "--etcd-servers=https://a:2379,https://b:2379",
            "--etcd-servers",
            "\"https://c:2379\"",
            "--feature-gates=A=true,B=false",
            "--token-auth-file=",
            "--",
        ]);
        assert_eq!(flags.get("secure-port"), Some("7443"));
        assert_eq!(flags.get("bind-address"), Some("10.0.0.1"));
        assert_eq!(flags.get("allow-privileged"), Some("true"));
        assert_eq!(flags.get("feature-gates"), Some("A=true,B=false"));
        assert_eq!((flags.get("token-auth-file"), flags.get("v")), (None, None));
        let servers = ["https://a:2379", "https://b:2379", "https://c:2379"];
        assert_eq!(flags.list("etcd-servers"), servers);
    }
}
