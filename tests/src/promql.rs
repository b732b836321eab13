//! Evaluates the alert rules' expressions on one page of metrics, as Prometheus would right after it scraped that page: the part
//! of its language that they are written in, less what looks back in time.

#![allow(clippy::float_arithmetic, reason = "Prometheus reckons with floats")]

use std::collections::BTreeMap;

use regex::Regex;

type Labels = BTreeMap<String, String>;

const NAME: &str = "__name__";

/// An expression asks for earlier scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedsHistory;

/// One scrape of one agent.
#[derive(Debug, Clone)]
pub struct Scrape {
    now: f64,
    series: Vec<(Labels, f64)>,
}

/// What an expression gives: a number, or a value for each of several series.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(f64),
    Series(Vec<(Labels, f64)>),
}

impl Scrape {
    /// Reads a page. `now` are seconds since 1970; `target` are the labels that Prometheus adds.
    #[must_use]
    pub fn read(page: &str, now: i64, target: &[(&str, &str)]) -> Self {
        let lines = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let pairs = labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty());
            let mut labels: Labels = pairs
                .map(|pair| pair.split_once("=\"").unwrap())
                .map(|(k, v)| (k.to_owned(), v.trim_end_matches('"').to_owned()))
                .collect();
            labels.insert(NAME.to_owned(), name.to_owned());
            labels.extend(target.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
            (labels, value.parse().unwrap())
        });
        let now = now.to_string().parse().unwrap();
        Self { now, series: series.collect() }
    }

    /// The series for which an alert with this expression is pending or fires.
    ///
    /// # Errors
    /// An expression that asks for more than one scrape.
    pub fn alerts(&self, expression: &str) -> Result<Vec<BTreeMap<String, String>>, NeedsHistory> {
        let tokens = tokens(expression);
        let mut parser = Parser { scrape: self, tokens: &tokens, at: 0 };
        let value = parser.either()?;
        assert_eq!(parser.at, tokens.len(), "not understood from {:?} on: {expression}", &tokens[parser.at..]);
        match value {
            Value::Series(series) => Ok(series.into_iter().map(|(labels, _)| without(labels, NAME)).collect()),
            Value::Number(number) => panic!("{expression} is the number {number}"),
        }
    }
}

fn without(mut labels: Labels, name: &str) -> Labels {
    labels.remove(name);
    labels
}

/// Words, numbers, strings with their quotes, and signs.
fn tokens(text: &str) -> Vec<&str> {
    let pattern = Regex::new(r#""[^"]*"|[A-Za-z_:][A-Za-z0-9_:]*|[0-9.]+[smhdw]?|=~|!~|!=|==|>=|<=|\S"#).unwrap();
    pattern.find_iter(text).map(|found| found.as_str()).collect()
}

struct Parser<'a> {
    scrape: &'a Scrape,
    tokens: &'a [&'a str],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn expect(&mut self, token: &str) {
        assert_eq!(self.next(), token, "in {:?}", self.tokens);
    }

    fn one_of(&mut self, tokens: &[&str]) -> Option<&'a str> {
        tokens.contains(&self.peek()).then(|| self.next())
    }

    fn names(&mut self) -> Vec<&'a str> {
        self.expect("(");
        let mut names = Vec::new();
        while self.peek() != ")" {
            names.push(self.next());
            self.one_of(&[","]);
        }
        self.expect(")");
        names
    }

    fn either(&mut self) -> Result<Value, NeedsHistory> {
        let mut left = self.excluding()?;
        while self.one_of(&["or"]).is_some() {
            let (Value::Series(mut all), Value::Series(more)) = (left, self.excluding()?) else { panic!("`or` between numbers") };
            let known: Vec<Labels> = all.iter().map(|(labels, _)| without(labels.clone(), NAME)).collect();
            all.extend(more.into_iter().filter(|(labels, _)| !known.contains(&without(labels.clone(), NAME))));
            left = Value::Series(all);
        }
        Ok(left)
    }

    fn excluding(&mut self) -> Result<Value, NeedsHistory> {
        let mut left = self.comparison()?;
        while self.one_of(&["unless"]).is_some() {
            let on = self.one_of(&["on"]).map(|_| self.names()).expect("`unless` says `on` what");
            let (Value::Series(mut kept), Value::Series(others)) = (left, self.comparison()?) else { panic!("`unless` between numbers") };
            let key = |labels: &Labels| on.iter().map(|name| labels.get(*name).cloned().unwrap_or_default()).collect::<Vec<_>>();
            kept.retain(|(labels, _)| others.iter().all(|(other, _)| key(other) != key(labels)));
            left = Value::Series(kept);
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Value, NeedsHistory> {
        let left = self.difference()?;
        let Some(sign) = self.one_of(&["==", "!=", ">", "<", ">=", "<="]) else { return Ok(left) };
        let (Value::Series(mut series), Value::Number(bound)) = (left, self.difference()?) else {
            panic!("{sign} compares a series with a number")
        };
        series.retain(|(_, value)| match sign {
            "==" => value.total_cmp(&bound).is_eq(),
            "!=" => value.total_cmp(&bound).is_ne(),
            ">" => *value > bound,
            "<" => *value < bound,
            ">=" => *value >= bound,
            _ => *value <= bound,
        });
        Ok(Value::Series(series))
    }

    fn difference(&mut self) -> Result<Value, NeedsHistory> {
        let left = self.operand()?;
        if self.one_of(&["-"]).is_none() {
            return Ok(left);
        }
        match (left, self.operand()?) {
            (Value::Number(left), Value::Series(right)) => {
                Ok(Value::Series(right.into_iter().map(|(labels, value)| (without(labels, NAME), left - value)).collect()))
            }
            other => panic!("a difference of {other:?}"),
        }
    }

    fn operand(&mut self) -> Result<Value, NeedsHistory> {
        let token = self.next();
        if token == "(" {
            let inner = self.either()?;
            self.expect(")");
            return Ok(inner);
        }
        if let Ok(number) = token.parse() {
            return Ok(Value::Number(number));
        }
        match token {
            "time" => {
                assert!(self.names().is_empty());
                Ok(Value::Number(self.scrape.now))
            }
            "max" => {
                self.expect("by");
                let by = self.names();
                self.expect("(");
                let Value::Series(series) = self.either()? else { panic!("the maximum of a number") };
                self.expect(")");
                let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
                for (labels, value) in series {
                    let group = labels.into_iter().filter(|(name, _)| by.contains(&name.as_str())).collect();
                    groups.entry(group).and_modify(|most| *most = most.max(value)).or_insert(value);
                }
                Ok(Value::Series(groups.into_iter().collect()))
            }
            // What sums and changes is asked of counters over a time.
            "sum" | "group" | "changes" | "increase" | "last_over_time" => Err(NeedsHistory),
            name => Ok(Value::Series(self.select(name))),
        }
    }

    fn select(&mut self, name: &str) -> Vec<(Labels, f64)> {
        let mut found: Vec<(Labels, f64)> = self.scrape.series.iter().filter(|(labels, _)| labels[NAME] == name).cloned().collect();
        if self.one_of(&["{"]).is_none() {
            return found;
        }
        while self.one_of(&["}"]).is_none() {
            let (label, sign, text) = (self.next(), self.next(), self.next().trim_matches('"'));
            let whole = Regex::new(&format!("^(?:{text})$")).unwrap();
            found.retain(|(labels, _)| {
                let value = labels.get(label).map(String::as_str).unwrap_or_default();
                match sign {
                    "=" => value == text,
                    "!=" => value != text,
                    "=~" => whole.is_match(value),
                    "!~" => !whole.is_match(value),
                    other => panic!("no matcher: {other}"),
                }
            });
            self.one_of(&[","]);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The label `c` of what the expression finds.
    fn found(page: &str, expression: &str) -> Vec<String> {
        let scrape = Scrape::read(page, 100, &[("job", "a"), ("instance", "1")]);
        scrape.alerts(expression).unwrap().into_iter().map(|mut labels| labels.remove("c").unwrap_or_default()).collect()
    }

    #[test]
    fn expressions_mean_what_prometheus_says() {
        let page = "# HELP x y\nx{c=\"one\"} 1\nx{c=\"two\"} 0\nx{c=\"three-x\",d=\"e\"} 1\nat{c=\"one\"} 40\nat{c=\"two\"} 0\nlead 0\n";
        assert_eq!(found(page, "x == 1"), ["one", "three-x"]);
        assert_eq!(found(page, r#"x{c=~"(one|two)|three"} == 1"#), ["one"]);
        assert_eq!(found(page, r#"x{c!~"t.*", d!="e"} >= 0"#), ["one"]);
        assert_eq!(found(page, "max by (c) (x) == 1"), ["one", "three-x"]);
        assert_eq!(found(page, "max by (job) (x) == 1"), [""]);
        assert_eq!(found(page, "time() - (at > 0) > 59"), ["one"]);
        assert_eq!(found(page, "time() - at > 60"), ["two"]);
        assert_eq!(found(page, "x == 1 unless on (job, instance) (lead == 0)"), Vec::<String>::new());
        assert_eq!(found(page, "x == 1 unless on (job, instance) (lead == 1)"), ["one", "three-x"]);
        assert_eq!(found(page, "at > 30 or max by (c) (x) == 0"), ["one", "two"]);
        let scrape = Scrape::read(page, 100, &[]);
        assert_eq!(scrape.alerts("sum by (c) (increase(x[15m])) > 0"), Err(NeedsHistory));
    }
}
