//! One mistake in a file, with its place.

use std::fmt;

use super::yaml::Pos;

/// One mistake: where it is, which field it is about, what is wrong and what to do. Never quotes a secret or a neighbouring
/// line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `file:line:column`, the file alone, or the name of an environment variable.
    pub place: String,
    /// The field, as `section.field`; empty when the mistake is not in one field.
    pub field: String,
    /// What is wrong and the cure.
    pub message: String,
    /// Position for ordering.
    pub(crate) pos: Option<Pos>,
}

impl Problem {
    /// A mistake at a place in a file.
    pub(crate) fn at(file: &str, pos: Pos, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: format!("{file}:{}:{}", pos.line, pos.column), field: field.into(), message: message.into(), pos: Some(pos) }
    }

    /// A mistake of a whole file, or of an environment variable.
    pub(crate) fn of(place: impl Into<String>, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), field: field.into(), message: message.into(), pos: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}: {}", self.place, self.message)
        } else {
            write!(f, "{}: {}: {}", self.place, self.field, self.message)
        }
    }
}

/// Writes problems one per line, in the order of the file; those without a line come last.
pub(crate) fn write_all(problems: &[Problem], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, problem) in problems.iter().enumerate() {
        if index > 0 {
            f.write_str("\n")?;
        }
        write!(f, "{problem}")?;
    }
    Ok(())
}

/// Orders problems by their place in the file and drops repetitions.
pub(crate) fn sort(problems: &mut Vec<Problem>) {
    problems.sort_by_key(|problem| (problem.pos.is_none(), problem.pos));
    problems.dedup();
}

/// The candidate nearest to `word`, if one is near enough to be a slip of the fingers.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(128).collect();
    let right: Vec<char> = right.chars().take(128).collect();
    let mut rows = vec![(0..=right.len()).collect::<Vec<_>>()];
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let cost = usize::from(left[i - 1] != right[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + cost);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_candidate_is_a_slip_away() {
        let fields = ["url", "public_url", "key_file", "timeout"];
        assert_eq!(nearest("ulr", fields), Some("url"));
        assert_eq!(nearest("key_flie", fields), Some("key_file"));
        assert_eq!(nearest("Timeout", fields), Some("timeout"));
        assert_eq!(nearest("publicurl", fields), Some("public_url"));
        assert_eq!(nearest("colour", fields), None);
    }
}
