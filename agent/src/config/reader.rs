//! Reads fields one by one, environment before file, and collects every mistake instead of stopping at the first.

use std::path::PathBuf;
use std::time::Duration;

use rust_decimal::Decimal;
use url::Url;
use uuid::Uuid;

use super::env::Env;
use super::fields;
use super::number;
use super::problem::{Problem, nearest};
use super::yaml::{self, Entry, Kind, Node, Pos};
use crate::secret_file::{self, SecretFile, SecretRef};

/// The state of one reading of the configuration.
pub(crate) struct Reader<'a> {
    /// The name of the file, for messages.
    pub(crate) file: String,
    pub(crate) env: Env<'a>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<String>,
}

/// One mapping of the file, or the empty one.
#[derive(Clone)]
pub(crate) struct Section {
    /// `offerings[0].limits`; empty at the top.
    pub(crate) path: String,
    entries: Vec<Entry>,
    place: Place,
}

/// Where something was written.
#[derive(Clone)]
pub(crate) enum Place {
    /// Nowhere.
    Absent,
    /// At a place in the file.
    File(Pos),
    /// In a variable.
    Variable(String),
}

impl Section {
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key.as_deref() == Some(key))
    }

    fn node(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value).filter(|node| !node.is_null())
    }
}

/// A value for messages: short ones only, so that a secret in the wrong place is not repeated.
fn shown(text: &str) -> String {
    if text.chars().count() <= 16 {
        format!("`{}`", text.escape_default())
    } else {
        format!("a value of {} characters", text.chars().count())
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: String, env: Env<'a>) -> Self {
        Self { file, env, problems: Vec::new(), warnings: Vec::new() }
    }

    /// Records a mistake at a place.
    pub(crate) fn problem(&mut self, place: &Place, path: &str, message: impl Into<String>) {
        self.problems.push(match place {
            Place::File(pos) => Problem::at(&self.file, *pos, path, message),
            Place::Variable(name) => Problem::of(name.clone(), path, message),
            Place::Absent => Problem::of(self.file.clone(), path, message),
        });
    }

    /// Where a field was written, or else its section.
    pub(crate) fn place(&self, section: &Section, key: &str) -> Place {
        let name = fields::variable(&section.path_of(key));
        if self.env.get(&name).is_some() {
            return Place::Variable(name);
        }
        match (section.entry(key), &section.place) {
            (_, Place::Variable(name)) => Place::Variable(name.clone()),
            (Some(entry), _) => Place::File(entry.value.pos),
            (None, place) => place.clone(),
        }
    }

    /// Records a mistake of a field where it was written.
    pub(crate) fn fault(&mut self, section: &Section, key: &str, message: impl Into<String>) {
        let place = self.place(section, key);
        self.problem(&place, &section.path_of(key), message);
    }

    fn missing(&mut self, section: &Section, key: &str) {
        let variable = fields::variable(&section.path_of(key));
        self.problem(&section.place.clone(), &section.path_of(key), format!("is missing; set it in the file or as {variable}"));
    }

    /// The top of the document.
    pub(crate) fn root(&mut self, root: Option<Node>) -> Section {
        self.open(String::new(), root, Place::Absent)
    }

    /// Makes a section of a node and checks its keys.
    pub(crate) fn open(&mut self, path: String, node: Option<Node>, absent: Place) -> Section {
        let mut section = Section { path, entries: Vec::new(), place: absent };
        let Some(node) = node.filter(|node| !node.is_null()) else {
            return section;
        };
        if !matches!(section.place, Place::Variable(_)) {
            section.place = Place::File(node.pos);
        }
        match node.kind {
            Kind::Map(entries) => {
                section.entries = entries;
                self.check_keys(&section);
            }
            _ => {
                let found = node.kind_name();
                self.problem(&section.place.clone(), &section.path.clone(), format!("has to be a mapping, and is {found}"));
            }
        }
        section
    }

    fn check_keys(&mut self, section: &Section) {
        let pattern = fields::pattern(&section.path);
        let known = fields::keys(&pattern);
        let secrets = fields::secrets(&pattern);
        let mut seen: Vec<(&str, Pos)> = Vec::new();
        for entry in &section.entries {
            let place = match &section.place {
                Place::Variable(name) => Place::Variable(name.clone()),
                _ => Place::File(entry.key_pos),
            };
            let Some(key) = entry.key.as_deref() else {
                self.problem(&place, &section.path, "a key has to be a plain word");
                continue;
            };
            if let Some((_, first)) = seen.iter().find(|(other, _)| *other == key) {
                let first = first.line;
                self.problem(&place, &section.path_of(key), format!("is written twice; the first is on line {first}; keep one"));
                continue;
            }
            seen.push((key, entry.key_pos));
            if !known.contains(&key) {
                let message = unknown_key(&pattern, key, &known, &secrets);
                // A long key is no slip of the fingers; it may be a secret that lost its field.
                let path = match key.chars().count() {
                    0..=32 => section.path_of(&key.escape_debug().to_string()),
                    count => section.path_of(&format!("(a key of {count} characters)")),
                };
                self.problem(&place, &path, message);
            }
        }
    }

    /// A section of a section; an empty one when nothing is written.
    pub(crate) fn section(&mut self, parent: &Section, key: &str) -> Section {
        let node = parent.node(key).cloned();
        let place = parent.place.clone();
        self.open(parent.path_of(key), node, place)
    }

    /// A section that may be absent as a whole.
    pub(crate) fn optional_section(&mut self, parent: &Section, key: &str) -> Option<Section> {
        if parent.node(key).is_none() && !self.env.has_below(&parent.path_of(key)) {
            return None;
        }
        Some(self.section(parent, key))
    }

    /// Whether a field is written anywhere.
    pub(crate) fn is_set(&self, section: &Section, key: &str) -> bool {
        self.env.get(&fields::variable(&section.path_of(key))).is_some() || section.node(key).is_some()
    }

    /// The text of a field, as written.
    pub(crate) fn text(&mut self, section: &Section, key: &str) -> Option<String> {
        if let Some(value) = self.env.get(&fields::variable(&section.path_of(key))) {
            return Some(value.to_owned());
        }
        let node = section.node(key)?;
        match &node.kind {
            Kind::Scalar { text, .. } if text.is_empty() => {
                self.fault(section, key, "is empty; write a value or leave the field out");
                None
            }
            Kind::Scalar { text, .. } => Some(text.clone()),
            Kind::List(_) | Kind::Map(_) => {
                let found = node.kind_name();
                self.fault(section, key, format!("has to be a single value, and is {found}"));
                None
            }
        }
    }

    /// The text of a field that has to be there.
    pub(crate) fn required(&mut self, section: &Section, key: &str) -> Option<String> {
        if !self.is_set(section, key) {
            self.missing(section, key);
            return None;
        }
        self.text(section, key)
    }

    fn parsed<T>(&mut self, section: &Section, key: &str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Option<T> {
        let text = self.text(section, key)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.fault(section, key, format!("{} {wrong}", shown(&text)));
                None
            }
        }
    }

    pub(crate) fn boolean(&mut self, section: &Section, key: &str, default: bool) -> bool {
        self.parsed(section, key, |text| match text {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            _ => Err("is neither true nor false"),
        })
        .unwrap_or(default)
    }

    pub(crate) fn whole(&mut self, section: &Section, key: &str) -> Option<u32> {
        self.parsed(section, key, number::whole)
    }

    pub(crate) fn decimal(&mut self, section: &Section, key: &str) -> Option<Decimal> {
        let value = self.parsed(section, key, number::decimal)?;
        if value.is_sign_negative() && !value.is_zero() {
            self.fault(section, key, "is negative; write 0 or more");
            return None;
        }
        Some(value)
    }

    /// A whole number larger than 0, as a decimal.
    pub(crate) fn rate(&mut self, section: &Section, key: &str) -> Option<Decimal> {
        let value = self.decimal(section, key)?;
        if value.is_zero() {
            self.fault(section, key, "is 0, which the gateway does not enforce; write 1 or more, or leave it out");
            None
        } else if !value.fract().is_zero() {
            self.fault(section, key, "is not a whole number");
            None
        } else {
            Some(value)
        }
    }

    /// A duration longer than nothing.
    pub(crate) fn duration(&mut self, section: &Section, key: &str, default: Duration) -> Duration {
        match self.parsed(section, key, number::duration) {
            Some(Duration::ZERO) => {
                self.fault(section, key, "is 0; write a longer time");
                default
            }
            Some(value) => value,
            None => default,
        }
    }

    /// A duration that may be 0.
    pub(crate) fn wait(&mut self, section: &Section, key: &str, default: Duration) -> Duration {
        self.parsed(section, key, number::duration).unwrap_or(default)
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&mut self, section: &Section, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(section, key)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        self.fault(section, key, not_a_word(&text, words.iter().map(|(word, _)| *word)));
        None
    }

    pub(crate) fn uuid(&mut self, section: &Section, key: &str) -> Option<Uuid> {
        let text = self.required(section, key)?;
        match uuid(&text) {
            Ok(uuid) => Some(uuid),
            Err(wrong) => {
                self.fault(section, key, wrong);
                None
            }
        }
    }

    /// A path, as written; a relative one is relative to where the agent was started.
    pub(crate) fn path(&mut self, section: &Section, key: &str) -> Option<PathBuf> {
        self.text(section, key).map(PathBuf::from)
    }

    /// An http or https URL with a slash at its end, without credentials, query or fragment.
    pub(crate) fn url(&mut self, section: &Section, key: &str) -> Option<Url> {
        let text = self.text(section, key)?;
        let wrong = match Url::parse(&text) {
            Err(error) => format!("is not a URL: {error}; write it with http:// or https://"),
            Ok(url) if !matches!(url.scheme(), "http" | "https") => {
                "is neither an http nor an https URL; write it with http:// or https://".to_owned()
            }
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                "holds a user name or password; take them out of the URL and give credentials by file".to_owned()
            }
            Ok(url) if url.query().is_some() || url.fragment().is_some() => {
                "holds a query or fragment; end the URL with its path".to_owned()
            }
            Ok(mut url) => {
                if !url.path().ends_with('/') {
                    let path = format!("{}/", url.path());
                    url.set_path(&path);
                }
                return Some(url);
            }
        };
        self.fault(section, key, wrong);
        None
    }

    pub(crate) fn required_url(&mut self, section: &Section, key: &str) -> Option<Url> {
        if !self.is_set(section, key) {
            self.missing(section, key);
            return None;
        }
        self.url(section, key)
    }

    /// Refuses a credential over plain http to a peer that is not on loopback.
    pub(crate) fn guard_http(&mut self, section: &Section, key: &str, url: Option<&Url>, allowed: bool, cure: &str) {
        let Some(url) = url.filter(|url| url.scheme() == "http" && !is_loopback(url)) else {
            return;
        };
        let host = url.host_str().unwrap_or_default();
        if allowed {
            self.warnings.push(format!(
                "{}: the credential goes to {host} over plain http, where others on the network can read it",
                section.path_of(key)
            ));
        } else {
            self.fault(section, key, format!("would send the credential to {host} over plain http; write https, or {cure}"));
        }
    }

    /// A secret: `<key>` from the environment, or the file that `<key>_file` names.
    pub(crate) fn secret(&mut self, section: &Section, key: &str) -> Option<SecretRef> {
        let name = fields::variable(&section.path_of(key));
        let file_key = format!("{key}_file");
        if let Some(value) = self.env.get(&name) {
            if self.env.get(&fields::variable(&section.path_of(&file_key))).is_some() {
                self.problem(
                    &Place::Variable(name.clone()),
                    &section.path_of(key),
                    format!("is set, and {} too; unset one", fields::variable(&section.path_of(&file_key))),
                );
            }
            return match secret_file::clean(value.as_bytes().to_vec()) {
                Ok(secret) => Some(SecretRef::Value(secret)),
                Err(fault) => {
                    self.problem(&Place::Variable(name), &section.path_of(key), fault.to_string());
                    None
                }
            };
        }
        let text = self.text(section, &file_key)?;
        if !text.contains('/') || text.contains(['\n', '\r']) {
            self.fault(
                section,
                &file_key,
                "has to be the path of a file and looks like something else; write a path with a slash, as /run/secrets/name or ./name",
            );
            return None;
        }
        Some(SecretRef::File(SecretFile::new(text)))
    }

    /// A required [`Self::secret`].
    pub(crate) fn required_secret(&mut self, section: &Section, key: &str) -> Option<SecretRef> {
        let file_key = format!("{key}_file");
        let name = fields::variable(&section.path_of(key));
        if self.env.get(&name).is_none() && !self.is_set(section, &file_key) {
            self.problem(
                &section.place.clone(),
                &section.path_of(&file_key),
                format!("is missing; name a file that holds the secret, or set {name}"),
            );
            return None;
        }
        self.secret(section, key)
    }

    /// The elements of a list: from the file, or from a variable as a JSON array or with commas between.
    pub(crate) fn list(&mut self, section: &Section, key: &str) -> Option<Vec<(Node, Place)>> {
        let name = fields::variable(&section.path_of(key));
        if let Some(value) = self.env.get(&name) {
            let place = Place::Variable(name);
            return self.list_of_variable(value, &place, &section.path_of(key));
        }
        let node = section.node(key)?;
        match &node.kind {
            Kind::List(items) => Some(
                items
                    .iter()
                    .map(|item| {
                        let place = match &section.place {
                            Place::Variable(name) => Place::Variable(name.clone()),
                            _ => Place::File(item.pos),
                        };
                        (item.clone(), place)
                    })
                    .collect(),
            ),
            _ => {
                let found = node.kind_name();
                self.fault(section, key, format!("has to be a list, and is {found}"));
                None
            }
        }
    }

    fn list_of_variable(&mut self, value: &str, place: &Place, path: &str) -> Option<Vec<(Node, Place)>> {
        if value.trim_start().starts_with('[') {
            return match self.structure(value, place, path)?.kind {
                Kind::List(items) => Some(items.into_iter().map(|item| (item, place.clone())).collect()),
                _ => None,
            };
        }
        Some(
            value
                .split(',')
                .map(|part| {
                    let node = Node { pos: Pos { line: 1, column: 1 }, kind: Kind::Scalar { text: part.trim().to_owned(), plain: false } };
                    (node, place.clone())
                })
                .collect(),
        )
    }

    /// A variable that holds a JSON array or object. JSON is read as the YAML it is, so that numbers keep their text.
    fn structure(&mut self, value: &str, place: &Place, path: &str) -> Option<Node> {
        match yaml::parse(value) {
            Ok(Some(node)) if !matches!(node.kind, Kind::Scalar { .. }) => Some(node),
            _ => {
                self.problem(place, path, "is not valid JSON");
                None
            }
        }
    }

    /// A field that is a word or a mapping: the mapping's node and place, from file or variable.
    pub(crate) fn mapping(&mut self, section: &Section, key: &str) -> Option<(Node, Place)> {
        let name = fields::variable(&section.path_of(key));
        if let Some(value) = self.env.get(&name) {
            if !value.trim_start().starts_with('{') {
                return None;
            }
            let place = Place::Variable(name);
            let node = self.structure(value, &place, &section.path_of(key))?;
            return Some((node, place));
        }
        let node = section.node(key)?;
        matches!(node.kind, Kind::Map(_)).then(|| (node.clone(), self.place(section, key)))
    }

    /// A list of texts, each not empty and written once.
    pub(crate) fn texts(&mut self, section: &Section, key: &str) -> Vec<String> {
        let path = section.path_of(key);
        let mut texts: Vec<String> = Vec::new();
        for (index, (node, place)) in self.list(section, key).unwrap_or_default().into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            match node.kind {
                Kind::Scalar { text, .. } if text.is_empty() => {
                    self.problem(&place, &path, "is empty; take it out");
                }
                Kind::Scalar { text, .. } if text.chars().any(char::is_control) => {
                    self.problem(&place, &path, "holds a control character");
                }
                Kind::Scalar { text, .. } if texts.contains(&text) => {
                    self.problem(&place, &path, "is in the list twice; keep one");
                }
                Kind::Scalar { text, .. } => texts.push(text),
                Kind::List(_) | Kind::Map(_) => {
                    let found = node.kind_name();
                    self.problem(&place, &path, format!("has to be a single value, and is {found}"));
                }
            }
        }
        texts
    }

    /// A text that has to pass a check; messages do not repeat it.
    pub(crate) fn name(&mut self, section: &Section, key: &str, check: fn(&str) -> Result<(), &'static str>) -> Option<String> {
        let text = self.text(section, key)?;
        match check(&text) {
            Ok(()) => Some(text),
            Err(wrong) => {
                self.fault(section, key, wrong);
                None
            }
        }
    }

    /// A required [`Self::name`].
    pub(crate) fn required_name(&mut self, section: &Section, key: &str, check: fn(&str) -> Result<(), &'static str>) -> Option<String> {
        self.required(section, key)?;
        self.name(section, key, check)
    }
}

/// A UUID as 32 hexadecimal digits, with or without hyphens; other spellings are refused.
pub(crate) fn uuid(text: &str) -> Result<Uuid, &'static str> {
    match Uuid::try_parse(text) {
        Ok(uuid) if matches!(text.len(), 32 | 36) => Ok(uuid),
        _ => Err("is not a UUID: write 32 hexadecimal digits, with or without hyphens"),
    }
}

/// What a Kubernetes namespace or simple name may be (RFC 1123 label).
pub(crate) fn dns_label(text: &str) -> Result<(), &'static str> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-') {
        Ok(())
    } else {
        Err("is not a Kubernetes name: 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends")
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn not_a_word<'w>(text: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    let all = words.clone().collect::<Vec<_>>().join(", ");
    match nearest(text, words) {
        Some(word) => format!("{} is not one of {all}; did you mean {word}?", shown(text)),
        None => format!("{} is not one of {all}", shown(text)),
    }
}

fn unknown_key(section: &str, key: &str, known: &[&'static str], secrets: &[(&'static str, String)]) -> String {
    let hint = |file_key: &str, variable: &str| {
        let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
        format!("a secret does not belong in this file; put it into a file of its own, name that in {prefix}{file_key}, or set {variable}")
    };
    let variable = |key: &str| fields::variable(&if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") });
    if let Some((key, file_key)) = secrets.iter().find(|(secret, _)| *secret == key) {
        return hint(file_key, &variable(key));
    }
    if let Some(near) = nearest(key, known.iter().copied()) {
        return format!("no such field; did you mean {near}?");
    }
    let lower = key.to_lowercase();
    if ["token", "secret", "password", "passwd", "key", "credential"].iter().any(|word| lower.contains(word)) {
        return match secrets.first() {
            Some((key, file_key)) => hint(file_key, &variable(key)),
            None => "no such field, and a secret does not belong in this file".to_owned(),
        };
    }
    // The right field in the wrong section.
    let elsewhere = fields::FIELDS.iter().filter(|field| !field.secret).find(|field| field.path.rsplit('.').next() == Some(key));
    match elsewhere {
        Some(field) => format!("no such field here; did you mean {}?", field.path),
        None => format!("no such field; there are: {}", known.join(", ")),
    }
}
