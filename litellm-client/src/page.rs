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
/// shrinks). So every row that was there when the reading began is seen, and rows added meanwhile may be missing. Repeated rows
/// are dropped; a total that shrank, or rows that do not add up to the first one, make the read worthless.
pub(crate) struct Pages<U> {
    /// What is kept of each row.
    rows: Vec<U>,
    seen: HashSet<String>,
    /// What the first page said.
    least: Option<u64>,
    /// What the last page said.
    total: Option<u64>,
    page: u64,
}

/// Pages that may come beyond those the total promises, while rows are added.
const MORE_PAGES: u64 = 50;

impl<U> Pages<U> {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), seen: HashSet::new(), least: None, total: None, page: 1 }
    }

    /// The page to ask for next.
    pub(crate) fn next(&self) -> u64 {
        self.page
    }

    /// Takes a page; true when it was the last one. `identity` tells rows apart, `keep` makes of each what is kept.
    pub(crate) fn add<T>(
        &mut self,
        answer: &Answer,
        (page, total): (u64, u64),
        rows: Vec<T>,
        identity: impl Fn(&T) -> String,
        mut keep: impl FnMut(T) -> Result<U>,
    ) -> Result<bool> {
        if page != self.page {
            return Err(answer.incomplete(format!("asked for page {}, got page {page}", self.page)));
        }
        if let Some(before) = self.total.filter(|before| *before > total) {
            return Err(answer.incomplete(format!("the total went from {before} to {total} while reading; read again")));
        }
        let grew = self.total.is_some_and(|before| before < total);
        let least = *self.least.get_or_insert(total);
        self.total = Some(total);
        let had = self.count();
        // A short page is the last one, and so is an empty one after rows were added.
        let at_end = u64::try_from(rows.len()).unwrap_or(u64::MAX) < PAGE_SIZE;
        for row in rows {
            if self.seen.insert(identity(&row)) {
                self.rows.push(keep(row)?);
            }
        }
        let count = self.count();
        if count == total || (at_end && least < total && (least..total).contains(&count)) {
            return Ok(true);
        }
        let stuck = count == had && !grew;
        if count > total || at_end || stuck || page > total / PAGE_SIZE + MORE_PAGES {
            return Err(answer.incomplete(format!("the pages hold {count} rows, the total says {total}; read again")));
        }
        self.page += 1;
        Ok(false)
    }

    fn count(&self) -> u64 {
        u64::try_from(self.rows.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn into_rows(self) -> Vec<U> {
        self.rows
    }
}
