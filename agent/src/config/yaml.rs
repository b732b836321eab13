//! A tree of a YAML document in which every scalar keeps its text and its place.
//!
//! Typed deserialisation stops at the first mistake and turns `NO`, `1.10` or a token of digits into something else as soon
//! as a value is buffered; its snippets print neighbouring lines, which may hold secrets. So the parser's events are read
//! into this tree, and the readers of the configuration and of the catalogue take from it what they need, field by field.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{Event, Marker, Options, Parser, ScalarStyle};

/// How many nodes a document may unfold to. Aliases repeat what they refer to; this keeps a small hostile file small.
const MAX_NODES: usize = 500_000;

/// A place in a file; both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl From<&Marker> for Pos {
    fn from(mark: &Marker) -> Self {
        Self { line: mark.line().max(1), column: mark.col() + 1 }
    }
}

/// One value of the document. It has no `Debug`, since the text may be a secret.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) pos: Pos,
    pub(crate) kind: Kind,
}

/// What a value is.
#[derive(Clone)]
pub(crate) enum Kind {
    /// The text as written (after YAML's own escapes); `plain` when it was not quoted.
    Scalar { text: String, plain: bool },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<Entry>),
}

/// One key of a mapping and its value.
#[derive(Clone)]
pub(crate) struct Entry {
    /// The text of the key; `None` when the key is itself a list or a mapping.
    pub(crate) key: Option<String>,
    pub(crate) key_pos: Pos,
    pub(crate) value: Node,
    /// Taken over by a merge key (`<<`).
    pub(crate) merged: bool,
}

/// A document that is not YAML, or not one document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) pos: Pos,
    /// Never quotes the document.
    pub(crate) message: String,
}

impl Node {
    /// Whether the value is YAML's null: nothing, `~` or `null`, unquoted.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether nothing at all was written: nothing or `~`, but not the word `null`.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~"))
    }

    /// The kind in words, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar { .. } if self.is_null() => "nothing",
            Kind::Scalar { .. } => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }
}

/// A collection that is still open while its events arrive.
struct Open {
    node: Node,
    anchor: usize,
    /// In a mapping: the key whose value comes next.
    key: Option<(Option<String>, bool, Pos)>,
}

/// Reads one document; `None` when the file holds none (empty, or comments only).
///
/// # Errors
/// When the text is not YAML, holds several documents, or unfolds to more than [`MAX_NODES`] values.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, SyntaxError> {
    let mut options = Options::default();
    options.emit_comments = false;
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| SyntaxError {
            pos: Pos::from(error.marker()),
            message: format!("not valid YAML: {}", error.info().replace(['\n', '\r'], " ")),
        })?;
        builder.take(event, Pos::from(&span.start))?;
    }
    Ok(builder.root)
}

#[derive(Default)]
struct Builder {
    stack: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, pos: Pos) -> Result<(), SyntaxError> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(SyntaxError { pos, message: "a second document starts here; keep one document in the file".to_owned() });
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                let node = Node { pos, kind: Kind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain } };
                self.done(node, anchor, 1)?;
            }
            Event::SequenceStart(_, anchor, _) => self.open(Kind::List(Vec::new()), anchor, pos),
            Event::MappingStart(_, anchor, _) => self.open(Kind::Map(Vec::new()), anchor, pos),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.stack.pop() {
                    self.done(open.node, open.anchor, 1)?;
                }
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some((node, size)) => {
                    let (node, size) = (node.clone(), *size);
                    self.done(node, 0, size)?;
                }
                None => {
                    return Err(SyntaxError { pos, message: "an alias refers to the value it is part of".to_owned() });
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, kind: Kind, anchor: usize, pos: Pos) {
        self.stack.push(Open { node: Node { pos, kind }, anchor, key: None });
    }

    /// A value is complete: it belongs to the innermost open collection, or is the document.
    fn done(&mut self, mut node: Node, anchor: usize, size: usize) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(size);
        if self.nodes > MAX_NODES {
            return Err(SyntaxError {
                pos: node.pos,
                message: format!("the document unfolds to more than {MAX_NODES} values; use fewer aliases"),
            });
        }
        if let Kind::Map(entries) = &mut node.kind {
            merge(entries);
        }
        if anchor != 0 {
            let size = count(&node);
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(open) => match &mut open.node.kind {
                Kind::List(items) => items.push(node),
                Kind::Map(entries) => match open.key.take() {
                    None => {
                        let pos = node.pos;
                        open.key = Some(match node.kind {
                            Kind::Scalar { text, plain } => (Some(text), plain, pos),
                            Kind::List(_) | Kind::Map(_) => (None, false, pos),
                        });
                    }
                    Some((key, plain, key_pos)) => {
                        entries.push(Entry { merged: plain && key.as_deref() == Some("<<"), key, key_pos, value: node })
                    }
                },
                Kind::Scalar { .. } => {}
            },
        }
        Ok(())
    }
}

/// Replaces the merge keys of a mapping by what they bring in; keys that the mapping has itself win.
fn merge(entries: &mut Vec<Entry>) {
    if !entries.iter().any(|entry| entry.merged && entry.key.as_deref() == Some("<<")) {
        return;
    }
    let (merges, mut own): (Vec<Entry>, Vec<Entry>) =
        std::mem::take(entries).into_iter().partition(|entry| entry.merged && entry.key.as_deref() == Some("<<"));
    for entry in merges {
        let sources = match entry.value.kind {
            Kind::List(items) => items,
            kind => vec![Node { pos: entry.value.pos, kind }],
        };
        for source in sources {
            if let Kind::Map(inherited) = source.kind {
                for mut entry in inherited {
                    if !own.iter().any(|other| other.key == entry.key) {
                        entry.merged = true;
                        own.push(entry);
                    }
                }
            }
        }
    }
    *entries = own;
}

fn count(node: &Node) -> usize {
    match &node.kind {
        Kind::Scalar { .. } => 1,
        Kind::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Kind::Map(entries) => 1 + entries.iter().map(|entry| 1 + count(&entry.value)).sum::<usize>(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn show(node: &Node) -> String {
        match &node.kind {
            Kind::Scalar { text, .. } => format!("{text}@{}:{}", node.pos.line, node.pos.column),
            Kind::List(items) => {
                format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" "))
            }
            Kind::Map(entries) => format!(
                "{{{}}}",
                entries
                    .iter()
                    .map(|entry| format!("{}={}", entry.key.as_deref().unwrap_or("?"), show(&entry.value)))
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
        }
    }

    fn tree(text: &str) -> String {
        match parse(text) {
            Ok(Some(node)) => show(&node),
            Ok(None) => "none".to_owned(),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn refused(text: &str) -> SyntaxError {
        match parse(text) {
            Ok(_) => panic!("accepted"),
            Err(error) => error,
        }
    }

    #[test]
    fn scalars_keep_their_text() {
        assert_eq!(tree("a: NO\nb: [1.10, 0123, 1e3]\ny: 'null'\n"), "{a=NO@1:4 b=[1.10@2:5 0123@2:11 1e3@2:17] y=null@3:4}");
        assert_eq!(tree("\u{feff}a: 1\n"), "{a=1@1:4}");
        assert_eq!(tree("a: !vault |\n  x\n  y\n"), "{a=x\ny\n@2:3}");
        assert_eq!(tree("{1: 2}: x\n"), "{?=x@1:9}");
    }

    #[test]
    fn no_document_is_not_an_empty_one() {
        for text in ["", "\n\n", "# nothing\n"] {
            assert_eq!(tree(text), "none", "{text:?}");
        }
        // The parser gives `~` for nothing.
        assert_eq!(tree("---\n"), "~@1:4");
    }

    #[test]
    fn aliases_and_merges_unfold() {
        assert_eq!(
            tree("base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: *b\n"),
            "{base={x=1@1:14 y=2@1:20} one={y=3@2:18 x=1@1:14} two={x=1@1:14 y=2@1:20}}"
        );
        assert_eq!(tree("a: &a {x: 1}\nb: {<<: [*a, {z: 2}]}\n"), "{a={x=1@1:11} b={x=1@1:11 z=2@2:18}}");
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let list = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        assert!(refused(&text).message.contains("unfolds"));
        assert!(refused("a: &a [*a]\n").message.contains("alias"));
    }

    #[test]
    fn syntax_errors_have_a_place_and_quote_nothing() {
        let error = refused("token: sk-marker\nother: [sk-marker, \nlast: {\n");
        assert!(error.pos.line >= 2, "{error:?}");
        assert!(!error.message.contains("marker"), "{error:?}");
        let error = refused("a: 1\n---\nb: 2\n");
        assert_eq!(error.pos, Pos { line: 2, column: 1 });
    }
}
