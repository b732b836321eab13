//! Secrets that come from a file (a mounted Secret) or from the environment.
//!
//! A credential with a stray line end, byte order mark or blank is the classic cause of a 401 that nobody understands, so
//! the text is checked here, once, and the error names the file or variable and never what is in it.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use secrecy::{ExposeSecret as _, SecretString};

/// The longest secret that is accepted, in bytes (16 KiB): a larger file is not a token.
pub const MAX_SECRET_BYTES: usize = 16 * 1024;

/// A closure that reads a secret anew each time it is called; its error is a text fit for a log.
pub type SecretSource = Arc<dyn Fn() -> Result<SecretString, String> + Send + Sync>;

/// A file that holds one secret and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// Where the file is.
    pub path: PathBuf,
}

/// Why the text of a secret cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretFault {
    /// Nothing is there, or nothing but a line end.
    Empty,
    /// Longer than [`MAX_SECRET_BYTES`].
    TooLong,
    /// Starts with a byte order mark, as some editors write it.
    ByteOrderMark,
    /// More than one line.
    SeveralLines,
    /// A blank at the start, at the end or between.
    Whitespace,
    /// A control byte.
    Control,
    /// A byte that an HTTP header cannot carry: not printable ASCII.
    NotAscii,
}

impl fmt::Display for SecretFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty; write the secret into it",
            Self::TooLong => "is longer than 16 KiB; it has to hold the secret and nothing else",
            Self::ByteOrderMark => "starts with a byte order mark; save it as plain text without one",
            Self::SeveralLines => "holds more than one line; it has to hold the secret on one line, with at most one line end after it",
            Self::Whitespace => "holds a blank; remove blanks before, after and inside the secret",
            Self::Control => "holds a control byte; write the secret anew as plain text",
            Self::NotAscii => "holds a byte that is not printable ASCII and cannot be sent in a header; write the secret anew",
        })
    }
}

/// A secret file that could not be used. Names the file, never its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file could not be opened or read.
    #[error("secret file {}: cannot be read: {source}; check that it exists, is mounted and is readable by the agent", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file was read and its content is not one clean secret.
    #[error("secret file {}: {fault}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: SecretFault,
    },
}

impl SecretFile {
    /// The secret file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads the secret: one trailing line end (`\n` or `\r\n`) is dropped, everything else is kept or refused.
    ///
    /// # Errors
    /// When the file cannot be read, or is empty, too long, of several lines, or holds blanks, control bytes, a byte order
    /// mark or anything else but printable ASCII.
    pub fn read(&self) -> Result<SecretString, SecretFileError> {
        let io = |source| SecretFileError::Io { path: self.path.clone(), source };
        let content = |fault| SecretFileError::Content { path: self.path.clone(), fault };
        // Two more bytes than allowed: a line end may follow the longest secret.
        let limit = u64::try_from(MAX_SECRET_BYTES + 3).unwrap_or(u64::MAX);
        let mut bytes = Vec::with_capacity(512);
        std::fs::File::open(&self.path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(io)?;
        clean(bytes).map_err(content)
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Takes one trailing line end off and checks the rest.
pub(crate) fn clean(mut bytes: Vec<u8>) -> Result<SecretString, SecretFault> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    if bytes.is_empty() {
        return Err(SecretFault::Empty);
    }
    if bytes.len() > MAX_SECRET_BYTES {
        return Err(SecretFault::TooLong);
    }
    if bytes.starts_with(b"\xef\xbb\xbf") || bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(SecretFault::ByteOrderMark);
    }
    if bytes.contains(&b'\n') || bytes.contains(&b'\r') {
        return Err(SecretFault::SeveralLines);
    }
    if bytes.iter().any(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(SecretFault::Whitespace);
    }
    if bytes.iter().any(u8::is_ascii_control) {
        return Err(SecretFault::Control);
    }
    if !bytes.is_ascii() {
        return Err(SecretFault::NotAscii);
    }
    String::from_utf8(bytes).map(SecretString::from).map_err(|_| SecretFault::NotAscii)
}

/// Whether a secret looks as if it had been base64-encoded once too often, as when `data:` of a Kubernetes Secret is filled
/// where `stringData:` was meant: it decodes to printable text. Tokens of hexadecimal digits decode to noise and do not.
pub fn looks_base64(secret: &SecretString) -> bool {
    let text = secret.expose_secret();
    if text.len() < 8 {
        return false;
    }
    match base64::engine::general_purpose::STANDARD.decode(text) {
        Ok(decoded) => {
            let inner = decoded.strip_suffix(b"\n").unwrap_or(&decoded);
            inner.len() >= 4 && inner.iter().all(u8::is_ascii_graphic)
        }
        Err(_) => false,
    }
}

/// Where a secret is to be had.
#[derive(Clone, Debug)]
pub enum SecretRef {
    /// In a file, read again whenever it is asked for, so that a rotated credential needs no restart.
    File(SecretFile),
    /// Given in the environment of the process.
    Value(SecretString),
}

impl SecretRef {
    /// The secret as it is now.
    ///
    /// # Errors
    /// As [`SecretFile::read`]; a value from the environment was checked when the configuration was loaded.
    pub fn read(&self) -> Result<SecretString, SecretFileError> {
        match self {
            Self::File(file) => file.read(),
            Self::Value(value) => Ok(value.clone()),
        }
    }

    /// A closure that reads the secret anew on every call.
    pub fn source(&self) -> SecretSource {
        let secret = self.clone();
        Arc::new(move || secret.read().map_err(|error| error.to_string()))
    }

    /// Where the secret comes from, for messages: the file, or `the environment`.
    pub fn origin(&self) -> String {
        match self {
            Self::File(file) => format!("file {}", file.path.display()),
            Self::Value(_) => "the environment".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, SecretFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, content).unwrap();
        (dir, SecretFile::new(path))
    }

    fn outcome(content: &[u8]) -> Result<String, SecretFault> {
        let (_dir, file) = file(content);
        match file.read() {
            Ok(secret) => Ok(secret.expose_secret().to_owned()),
            Err(SecretFileError::Content { fault, path }) => {
                assert_eq!(path, file.path);
                Err(fault)
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn one_line_end_is_dropped_and_the_rest_is_kept() {
        for content in ["tok", "tok\n", "tok\r\n"] {
            assert_eq!(outcome(content.as_bytes()), Ok("tok".to_owned()), "{content:?}");
        }
        let digits = "0123456789012345678901234567890123456789";
        assert_eq!(outcome(digits.as_bytes()), Ok(digits.to_owned()));
        let longest = "a".repeat(MAX_SECRET_BYTES);
        assert_eq!(outcome(format!("{longest}\r\n").as_bytes()), Ok(longest.clone()));
        assert_eq!(outcome(format!("{longest}a").as_bytes()), Err(SecretFault::TooLong));
    }

    #[test]
    fn unclean_content_is_refused_by_kind() {
        let cases: &[(&[u8], SecretFault)] = &[
            (b"", SecretFault::Empty),
            (b"\n", SecretFault::Empty),
            (b"\r\n", SecretFault::Empty),
            (b" tok", SecretFault::Whitespace),
            (b"tok ", SecretFault::Whitespace),
            (b"to k\n", SecretFault::Whitespace),
            (b"to\tk", SecretFault::Whitespace),
            (b"\xef\xbb\xbftok", SecretFault::ByteOrderMark),
            (b"\xff\xfet\0o\0k\0", SecretFault::ByteOrderMark),
            (b"tok\n\n", SecretFault::SeveralLines),
            (b"\ntok", SecretFault::SeveralLines),
            (b"tok\r", SecretFault::SeveralLines),
            (b"one\ntwo\n", SecretFault::SeveralLines),
            (b"to\0k", SecretFault::Control),
            (b"tok\x7f", SecretFault::Control),
            ("t\u{f6}k".as_bytes(), SecretFault::NotAscii),
            ("tok\u{a0}".as_bytes(), SecretFault::NotAscii),
            (b"t\xffk", SecretFault::NotAscii),
        ];
        for (content, fault) in cases {
            assert_eq!(outcome(content), Err(*fault), "{content:?}");
        }
        assert_eq!(outcome(&vec![b'a'; 1024 * 1024]), Err(SecretFault::TooLong));
    }

    #[test]
    fn errors_name_the_file_and_never_the_content() {
        let (_dir, file) = file(b"sk-marker-1 sk-marker-2\nsk-marker-3\n");
        let error = file.read().unwrap_err();
        let path = file.path.display().to_string();
        assert!(error.to_string().contains(&path), "{error}");
        assert!(!format!("{error} {error:?}").contains("marker"), "{error:?}");

        let missing = SecretFile::new("/nonexistent/waldur-token");
        let error = missing.read().unwrap_err().to_string();
        assert!(error.starts_with("secret file /nonexistent/waldur-token: cannot be read"), "{error}");
    }

    #[test]
    fn a_source_reads_the_file_again() {
        let (_dir, file) = file(b"first\n");
        let source = SecretRef::File(file.clone()).source();
        assert_eq!(source().unwrap().expose_secret(), "first");
        std::fs::write(&file.path, "second\n").unwrap();
        assert_eq!(source().unwrap().expose_secret(), "second");
        std::fs::remove_file(&file.path).unwrap();
        assert!(source().unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_value_is_never_shown_by_debug() {
        let secret = SecretRef::Value(SecretString::from("sk-marker"));
        assert_eq!(secret.read().unwrap().expose_secret(), "sk-marker");
        assert!(!format!("{secret:?} {}", secret.origin()).contains("marker"));
    }

    #[test]
    fn base64_of_a_token_is_told_from_a_token() {
        let looks = |text: &str| looks_base64(&SecretString::from(text));
        // base64 of "sk-0123456789abcdef" and of the same with a line end.
        assert!(looks("c2stMDEyMzQ1Njc4OWFiY2RlZg=="));
        assert!(looks("c2stMDEyMzQ1Njc4OWFiY2RlZgo="));
        assert!(!looks("sk-0123456789abcdef"));
        assert!(!looks("0123456789012345678901234567890123456789"));
        assert!(!looks("9c1185a5c5e9fc54612808977ee8f548b2258d31"));
        assert!(!looks("dG9r"));
    }
}
