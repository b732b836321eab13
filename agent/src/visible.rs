//! Text of others, made fit to be shown: nothing in it can move a cursor, turn the direction of what stands beside it, or hide.

/// `text` with every character escaped that a terminal or a browser obeys instead of showing: controls, line and paragraph
/// separators, marks and overrides of direction, and what has no width.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unseen(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// [`visible`], and no longer than `most` characters.
#[must_use]
pub fn visible_start(text: &str, most: usize) -> String {
    let shown = visible(&start(text, most));
    start(&shown, most)
}

/// The first `most` characters, the last of them an ellipsis where some were cut.
#[must_use]
pub fn start(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Whether a character acts instead of showing.
#[must_use]
pub fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_instead_of_showing_is_spelt_out() {
        assert_eq!(visible("a\n\u{1b}[2J\t"), "a\\n\\u{1b}[2J\\t");
        assert_eq!(visible("invoice\u{202e}gpj.exe"), "invoice\\u{202e}gpj.exe");
        assert_eq!(visible("ze\u{200b}ro\u{feff}"), "ze\\u{200b}ro\\u{feff}");
        assert_eq!(visible("Ωκεανός 海 🐦 \"<&>\""), "Ωκεανός 海 🐦 \"<&>\"");
    }

    #[test]
    fn what_is_too_long_is_cut_also_when_it_grows() {
        assert_eq!(visible_start("abcdef", 6), "abcdef");
        assert_eq!(visible_start("abcdefg", 6), "abcde…");
        assert_eq!(visible_start(&"\u{202e}".repeat(90), 20).chars().count(), 20);
    }
}
