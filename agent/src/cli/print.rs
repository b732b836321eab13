//! What commands print.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use super::commands::Problem;
pub use crate::visible::visible as clean;

/// Prints a line that the operator asked for. A reader that went away, as `head` does, has seen enough: the command goes on
/// to its end.
///
/// # Errors
/// Anything else that keeps the line from being written, such as a full disk.
pub fn say(line: impl Display) -> Result<(), Problem> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Problem { code: 1, message: format!("standard output cannot be written: {error}") })
        }
        _ => Ok(()),
    }
}

/// Lines of aligned columns. What would move the cursor or hide is shown escaped.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let clean: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = clean.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|h| h.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(head.to_vec())];
    lines.extend(clean.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// `1 resource`, `2 resources`.
#[must_use]
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
