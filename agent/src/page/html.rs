//! Markup, and text within it.

use std::fmt::{Display, Write as _};

use crate::visible::visible_start;

/// A document under construction. Markup can only come from the source of this program; whatever else goes in is escaped.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text, between tags or between the quotes of an attribute.
    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        // Writing to a String cannot fail.
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// Text that others chose, `most` characters of it, and kept from turning the direction of what stands around it.
    pub(super) fn theirs(&mut self, text: &str, most: usize) -> &mut Self {
        self.raw("<bdi>").text(visible_start(text, most)).raw("</bdi>")
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

struct Escaped<'a>(&'a mut String);

impl std::fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_put_in_becomes_markup() {
        let mut html = Html::default();
        html.raw("<p title=\"").text("\"'><script>").raw("\">").theirs("</p>&\u{202e}x", 100).raw("</p>");
        assert_eq!(html.into_string(), "<p title=\"&quot;&#39;&gt;&lt;script&gt;\"><bdi>&lt;/p&gt;&amp;\\u{202e}x</bdi></p>");
    }
}
