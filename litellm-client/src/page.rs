//! Lists that come in pages, put together only when the pages add up.

use std::collections::HashSet;

use crate::Result;
use crate::client::Answer;

/// The largest page the team and key lists give (more is answered with 422).
pub(crate) const PAGE_SIZE: u64 = 100;

/// Collects the rows of all pages and proves that none is missing.
///
/// Pages are offsets into a table that others write to. Rows are asked for in an order without ties, so between two pages
/// an added row can only repeat one that was seen (the total grows) and a removed one can only hide one (the total
/// shrinks). Repeated rows are dropped; a total that shrank, or rows that do not add up to it, make the read worthless.
pub(crate) struct Pages<T> {
    rows: Vec<T>,
    seen: HashSet<String>,
    total: Option<u64>,
    page: u64,
}

impl<T> Pages<T> {
    pub(crate) fn new() -> Self {
        Self {
            rows: Vec::new(),
            seen: HashSet::new(),
            total: None,
            page: 1,
        }
    }

    /// The page to ask for next.
    pub(crate) fn next(&self) -> u64 {
        self.page
    }

    /// Takes a page; true when it was the last one. `identity` tells rows apart.
    pub(crate) fn add(
        &mut self,
        answer: &Answer,
        page: u64,
        total: u64,
        rows: Vec<T>,
        identity: impl Fn(&T) -> String,
    ) -> Result<bool> {
        if page != self.page {
            return Err(answer.incomplete(format!("asked for page {}, got page {page}", self.page)));
        }
        if let Some(before) = self.total.filter(|before| *before > total) {
            return Err(answer.incomplete(format!(
                "the total went from {before} to {total} while reading; read again"
            )));
        }
        self.total = Some(total);
        let had = self.count();
        let empty = rows.is_empty();
        for row in rows {
            if self.seen.insert(identity(&row)) {
                self.rows.push(row);
            }
        }
        let count = self.count();
        if count == total {
            return Ok(true);
        }
        if count > total || empty || count == had {
            return Err(answer.incomplete(format!(
                "the pages hold {count} rows, the total says {total}; read again"
            )));
        }
        self.page += 1;
        Ok(false)
    }

    fn count(&self) -> u64 {
        u64::try_from(self.rows.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn into_rows(self) -> Vec<T> {
        self.rows
    }
}
