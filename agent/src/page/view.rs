//! The page itself.

use std::collections::HashMap;
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::html::Html;
use super::seen::{SeenOrder, SeenResource};
use crate::agent::Agent;
use crate::plan::Stage;

pub(super) const STYLE: &str = include_str!("style.css");

/// The most rows of one table.
const ROWS: usize = 100;
/// The most characters of a name, and of a message, that are shown.
const NAME: usize = 60;
const MESSAGE: usize = 400;

/// The page as of now; `number` counts the parts of the table of resources, from 1.
pub(super) fn page(agent: &Agent, number: usize) -> String {
    let now = agent.clock.now();
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>LLM access: ").text(&agent.config.owner);
    html.raw("</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw("<meta name=\"robots\" content=\"noindex\">\n<style>").raw(STYLE).raw("</style>\n</head>\n<body>\n");
    head(&mut html, agent, now);
    html.raw("<main>\n");
    summary(&mut html, agent, now);
    conditions(&mut html, agent, now);
    orders(&mut html, agent, now);
    resources(&mut html, agent, number);
    components(&mut html, agent);
    loops(&mut html, agent, now);
    html.raw("</main>\n<footer><p>Everything here is what the agent's loops saw last; nothing was asked for this page. It can be read, and nothing can be done with it.</p></footer>\n</body>\n</html>\n");
    html.into_string()
}

fn head(html: &mut Html, agent: &Agent, now: Timestamp) {
    html.raw("<header>\n<h1>LLM access <span>").text(&agent.config.owner).raw("</span></h1>\n<p>As of ");
    html.raw("<time datetime=\"").text(now).raw("\">").text(clock(now)).raw(" UTC</time> · version ").text(env!("CARGO_PKG_VERSION"));
    if agent.config.lease.is_some() {
        html.raw(if agent.is_leading() {
            " · this replica leads"
        } else {
            " · this replica stands by: what it shows is from when it last led, if it ever did"
        });
    }
    html.raw("</p>\n</header>\n");
}

fn summary(html: &mut Html, agent: &Agent, now: Timestamp) {
    let orders = agent.seen.orders();
    let open: usize = orders.values().map(|orders| orders.count).sum();
    let oldest = orders.values().flat_map(|orders| &orders.oldest).filter_map(|order| order.created).min();
    let resources = agent.seen.resources();
    let stale: usize = agent.seen.components().values().map(Vec::len).sum();
    let conditions = agent.conditions.all().len();
    html.raw("<dl class=\"sum\">\n");
    tile(html, "Conditions", "#conditions", conditions, if conditions == 0 { "good" } else { "bad" });
    html.raw("</dd></div>\n");
    tile(html, "Open orders", "#orders", open, "");
    if let Some(oldest) = oldest {
        html.raw(" <small>oldest ").text(span(now, oldest)).raw("</small>");
    }
    html.raw("</dd></div>\n");
    tile(html, "Resources", "#resources", resources.count, "");
    html.raw("</dd></div>\n");
    tile(html, "Budget 90 % spent", "#resources", resources.nearly_spent, if resources.nearly_spent > 0 { "warn" } else { "" });
    if resources.spent > 0 {
        html.raw(" <small>").text(resources.spent).raw(" all of it</small>");
    }
    html.raw("</dd></div>\n");
    tile(html, "Stale components", "#components", stale, "");
    html.raw("</dd></div>\n</dl>\n");
}

/// The begin of one figure; the caller adds to it and ends it.
fn tile(html: &mut Html, name: &'static str, to: &'static str, figure: usize, class: &'static str) {
    html.raw("<div><dt><a href=\"").raw(to).raw("\">").raw(name).raw("</a></dt><dd><span class=\"").raw(class).raw("\">");
    html.text(figure).raw("</span>");
}

fn conditions(html: &mut Html, agent: &Agent, now: Timestamp) {
    section(html, "conditions", "Conditions", "");
    let all = agent.conditions.all();
    if all.is_empty() {
        return nothing(html, "Nothing is wrong.");
    }
    let mut table = Table::begin(html, "conditions", &[("Condition", "w"), ("Since", "w"), ("What is wrong, and the cure", "")]);
    for (name, subject, condition) in all.iter().take(ROWS) {
        table.row(|html| {
            html.raw("<code>").text(name).raw("</code>");
            if !subject.is_empty() {
                html.raw("<span class=\"sub\">").theirs(subject, NAME).raw("</span>");
            }
        });
        table.cell(|html| ago(html, now, condition.since));
        table.cell(|html| {
            html.theirs(&condition.message, MESSAGE);
        });
    }
    table.end();
    more(html, all.len(), "conditions");
}

fn orders(html: &mut Html, agent: &Agent, now: Timestamp) {
    section(html, "orders", "Open orders", " and what waits to be repaired");
    let seen = agent.seen.orders();
    if seen.is_empty() {
        return nothing(html, "The order loop has not listed the orders yet.");
    }
    let mut waiting: HashMap<Uuid, (Timestamp, String)> =
        agent.schedule.waiting().into_iter().map(|(id, due, why)| (id, (due, why))).collect();
    let count: usize = seen.values().map(|orders| orders.count).sum();
    let mut rows: Vec<SeenOrder> = seen.into_values().flat_map(|orders| orders.oldest).collect();
    rows.sort_by_key(|order| (order.created, order.uuid));
    let waits: Vec<_> = rows.iter().map(|order| waiting.remove(&order.uuid)).collect();
    let resources = agent.seen.resources();
    let known = |id: Uuid| resources.by_share.iter().find(|resource| resource.uuid == id);
    // What is left is keyed by resource: repairs. An order that ended since the last listing is neither.
    let repairs: Vec<_> = waiting.into_iter().filter_map(|(id, wait)| Some((known(id)?, wait))).collect();
    if rows.is_empty() && repairs.is_empty() {
        return nothing(html, "No order is open.");
    }
    let mut table = Table::begin(html, "orders", &[("Order", ""), ("State", "w"), ("Waits since", "w"), ("Next try", "w"), ("Reason", "")]);
    for (order, wait) in rows.iter().zip(waits).take(ROWS) {
        table.row(|html| {
            html.text(&order.kind).raw(" ").theirs(&order.name, NAME);
            whose(html, &order.project, order.uuid);
        });
        table.cell(|html| {
            html.text(&order.state);
        });
        table.cell(|html| match order.created {
            Some(created) => ago(html, now, created),
            None => {
                html.raw("–");
            }
        });
        table.cell(|html| match &wait {
            _ if order.by_person => {
                html.raw("a person decides");
            }
            _ if order.resource.is_some_and(|resource| agent.schedule.is_busy(resource)) => {
                html.raw("at work");
            }
            Some((due, _)) if *due > now => until(html, now, *due),
            _ => {
                html.raw("next beat");
            }
        });
        table.cell(|html| {
            match &wait {
                Some((_, why)) => {
                    html.theirs(why, MESSAGE);
                }
                None => {
                    html.raw("–");
                }
            }
            if !order.error.is_empty() {
                html.raw("<span class=\"said\">Customer sees: ").theirs(&order.error, MESSAGE).raw("</span>");
            }
        });
    }
    for (resource, (due, why)) in repairs.iter().take(ROWS) {
        table.row(|html| {
            html.raw("Repair ").theirs(&resource.name, NAME);
            whose(html, &resource.project, resource.uuid);
        });
        table.cell(|html| {
            html.theirs(&resource.state, NAME);
        });
        table.cell(|html| {
            html.raw("–");
        });
        table.cell(|html| {
            if *due > now {
                until(html, now, *due)
            } else {
                {
                    html.raw("next beat");
                }
            }
        });
        table.cell(|html| {
            html.theirs(why, MESSAGE);
        });
    }
    table.end();
    more(html, count, "open orders");
}

fn resources(html: &mut Html, agent: &Agent, number: usize) {
    section(html, "resources", "Resources", ", the largest share of the budget first");
    let seen = agent.seen.resources();
    if seen.by_share.is_empty() {
        return nothing(html, "No resource was seen yet.");
    }
    let pages = seen.by_share.len().div_ceil(ROWS);
    let number = number.clamp(1, pages);
    let currency = agent.config.offerings.first().map(|offering| offering.currency.as_str()).unwrap_or_default();
    let mut table =
        Table::begin(html, "resources", &[("Resource", ""), ("State", "w"), ("Budget used", "w"), ("Spent", "n"), ("Resets", "w")]);
    for resource in seen.by_share.iter().skip((number - 1) * ROWS).take(ROWS) {
        table.row(|html| {
            html.theirs(&resource.name, NAME);
            whose(html, &resource.project, resource.uuid);
        });
        table.cell(|html| {
            html.raw(if resource.state == "OK" { "<span>" } else { "<span class=\"warn\">" }).theirs(&resource.state, NAME).raw("</span>");
            if resource.blocked {
                html.raw(", <span class=\"warn\">blocked</span>");
            }
        });
        table.cell(|html| used(html, resource));
        table.cell(|html| spent(html, resource, currency));
        table.cell(|html| match resource.reset {
            Some(_) if resource.overdue => {
                html.raw("<span class=\"bad\">overdue</span>");
            }
            Some(reset) => {
                html.raw("<time datetime=\"").text(reset).raw("\">").text(reset.strftime("%-d %b")).raw("</time>");
            }
            None => {
                html.raw("–");
            }
        });
    }
    table.end();
    if pages > 1 {
        html.raw("<nav aria-label=\"Parts of the table of resources\">");
        let range = |html: &mut Html, part: usize| {
            html.text((part - 1) * ROWS + 1).raw(" to ").text((part * ROWS).min(seen.by_share.len()));
        };
        for (part, name) in [(number - 1, "Before: "), (number + 1, "After: ")] {
            if (1..=pages).contains(&part) {
                html.raw("<a href=\"?page=").text(part).raw("#resources\">").raw(name);
                range(html, part);
                html.raw("</a>");
            }
        }
        html.raw("Shown: ");
        range(html, number);
        html.raw(" of ").text(seen.count).raw("</nav>\n");
    }
}

/// The second line of a row: the project, and the id that commands and the log know the thing by.
fn whose(html: &mut Html, project: &str, id: Uuid) {
    html.raw("<span class=\"sub\">");
    if !project.is_empty() {
        html.theirs(project, NAME).raw(" · ");
    }
    html.raw("<code>").text(id.simple()).raw("</code></span>");
}

fn used(html: &mut Html, resource: &SeenResource) {
    let Some(share) = resource.share else {
        html.raw(if resource.budget.is_some() { "–" } else { "no budget" });
        return;
    };
    html.raw("<meter min=\"0\" max=\"100\" low=\"80\" high=\"95\" optimum=\"0\" value=\"").text(share.min(100));
    html.raw("\" aria-hidden=\"true\"></meter>").text(share).raw(" %");
}

fn spent(html: &mut Html, resource: &SeenResource, currency: &str) {
    let Some(spend) = resource.spend else {
        html.raw("–");
        return;
    };
    let money = |amount: Decimal| format!("{:.2}", amount.round_dp(2));
    html.text(money(spend));
    if let Some(budget) = resource.budget {
        html.raw(" of ").text(money(budget));
    }
    html.raw(" ").text(currency);
}

fn components(html: &mut Html, agent: &Agent) {
    section(html, "components", "Stale components", "");
    let seen = agent.seen.components();
    if seen.is_empty() {
        return nothing(html, "The offering loop has not looked at the offerings yet.");
    }
    let rows: Vec<_> =
        seen.iter().flat_map(|(offering, components)| components.iter().map(move |component| (offering, component))).collect();
    if rows.is_empty() {
        return nothing(html, "Every component belongs to a model that is sold.");
    }
    let mut table = Table::begin(html, "components", &[("Component", "w"), ("State", "w"), ("Reason", "")]);
    for (offering, component) in rows.iter().take(ROWS) {
        table.row(|html| {
            html.raw("<code>").theirs(&component.kind, NAME).raw("</code>");
            if seen.len() > 1 {
                html.raw("<span class=\"sub\">offering <code>").text(offering.simple()).raw("</code></span>");
            }
        });
        table.cell(|html| {
            html.raw(if component.stage == Stage::Held { "<span class=\"warn\">" } else { "<span>" });
            html.text(component.stage.as_str()).raw("</span>");
        });
        table.cell(|html| {
            html.theirs(&component.why, MESSAGE);
        });
    }
    table.end();
    more(html, rows.len(), "stale components");
}

fn loops(html: &mut Html, agent: &Agent, now: Timestamp) {
    section(html, "loops", "Loops", " and their last pass");
    let passes = agent.progress.passes();
    if passes.is_empty() {
        return nothing(html, "No loop runs.");
    }
    let stuck = agent.progress.stuck();
    let mut table = Table::begin(html, "loops", &[("Loop", "w"), ("Ended", "w"), ("Every", "w"), ("What it did", "")]);
    for (which, pass) in &passes {
        table.row(|html| {
            html.raw("<code>").text(which).raw("</code>");
        });
        table.cell(|html| {
            let hangs = stuck.iter().any(|(name, _)| name == which);
            html.raw(if hangs { "<span class=\"bad\">hangs, last " } else { "<span>" });
            ago(html, now, pass.last);
            html.raw("</span>");
        });
        table.cell(|html| {
            html.text(crate::config::show_duration(pass.interval));
        });
        table.cell(|html| {
            html.theirs(if pass.outcome.is_empty() { "no pass has ended yet" } else { &pass.outcome }, MESSAGE);
        });
    }
    table.end();
}

// ---- parts of a page -----------------------------------------------------------------------------------------

fn section(html: &mut Html, id: &'static str, title: &'static str, more: &'static str) {
    html.raw("<h2 id=\"").raw(id).raw("\">").raw(title).raw("<span>").raw(more).raw("</span></h2>\n");
}

fn nothing(html: &mut Html, text: &'static str) {
    html.raw("<p class=\"none\">").raw(text).raw("</p>\n");
}

fn more(html: &mut Html, count: usize, what: &'static str) {
    if count > ROWS {
        html.raw("<nav>The first ")
            .text(ROWS)
            .raw(" of ")
            .text(count)
            .raw(" ")
            .raw(what)
            .raw("; <code>/status</code> and the log have more.</nav>\n");
    }
}

/// The heads of a table's columns, each with the class of its cells.
type Heads = &'static [(&'static str, &'static str)];

/// A table whose roles are spelt out: on a narrow screen its rows become blocks, and browsers forget then what they are.
struct Table<'a> {
    html: &'a mut Html,
    heads: Heads,
    column: usize,
    open: bool,
}

impl<'a> Table<'a> {
    fn begin(html: &'a mut Html, labelled_by: &'static str, heads: Heads) -> Self {
        html.raw("<table role=\"table\" aria-labelledby=\"").raw(labelled_by).raw("\">\n<thead role=\"rowgroup\"><tr role=\"row\">");
        for (head, class) in heads {
            html.raw("<th role=\"columnheader\" scope=\"col\" class=\"").raw(class).raw("\">").raw(head).raw("</th>");
        }
        html.raw("</tr></thead>\n<tbody role=\"rowgroup\">\n");
        Self { html, heads, column: 0, open: false }
    }

    /// The next row, and its first cell, which names it.
    fn row(&mut self, content: impl FnOnce(&mut Html)) {
        self.close();
        let class = self.heads.first().map(|(_, class)| *class).unwrap_or_default();
        self.html.raw("<tr role=\"row\"><th role=\"rowheader\" scope=\"row\" class=\"").raw(class).raw("\">");
        content(self.html);
        self.html.raw("</th>");
        (self.column, self.open) = (1, true);
    }

    fn cell(&mut self, content: impl FnOnce(&mut Html)) {
        let (label, class) = self.heads.get(self.column).copied().unwrap_or_default();
        self.html.raw("<td role=\"cell\" class=\"").raw(class).raw("\" data-label=\"").raw(label).raw("\"><span>");
        content(self.html);
        self.html.raw("</span></td>");
        self.column += 1;
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.html.raw("</tr>\n");
        }
    }

    fn end(mut self) {
        self.close();
        self.html.raw("</tbody>\n</table>\n");
    }
}

fn clock(at: Timestamp) -> impl Display {
    at.strftime("%Y-%m-%d %H:%M:%S")
}

fn ago(html: &mut Html, now: Timestamp, at: Timestamp) {
    time(html, at, |html| {
        html.text(span(now, at)).raw(" ago");
    });
}

fn until(html: &mut Html, now: Timestamp, at: Timestamp) {
    time(html, at, |html| {
        html.raw("in ").text(span(at, now));
    });
}

fn time(html: &mut Html, at: Timestamp, words: impl FnOnce(&mut Html)) {
    html.raw("<time datetime=\"").text(at).raw("\" title=\"").text(clock(at)).raw(" UTC\">");
    words(html);
    html.raw("</time>");
}

/// The time from `earlier` to `later` in its largest unit; a clock that was set back counts as no time at all.
fn span(later: Timestamp, earlier: Timestamp) -> String {
    let seconds = later.duration_since(earlier).max(SignedDuration::ZERO).as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_unit() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap_or_default();
        let since = |text: &str| span(at("2026-11-10T09:00:00Z"), at(text));
        assert_eq!(since("2026-11-10T08:58:01Z"), "119 s");
        assert_eq!(since("2026-11-10T08:58:00Z"), "2 min");
        assert_eq!(since("2026-11-10T07:00:00Z"), "2 h");
        assert_eq!(since("2026-11-08T08:00:00Z"), "2 days");
        assert_eq!(since("2026-11-10T09:00:05Z"), "0 s");
    }
}
