//! Under which month Waldur would file what is sent now.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::clock::after;
use crate::domain::BillingMonth;

/// How the usage of a month can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filing {
    /// Without a date: Waldur's own now is surely in the month.
    Now,
    /// With this date, on a server that dates usage.
    Dated(Timestamp),
    /// Not now; it would be filed under another month. Later it will do.
    Wait,
    /// Never: the month is over and the server does not date usage.
    Closed,
    /// It depends on whether the server dates usage, which is not known yet.
    Ask,
}

/// No zone is further from UTC than this.
const WIDEST: SignedDuration = SignedDuration::from_hours(14);

/// How usage of `month` can be sent at `now`. `zone` is where the server cuts its months, `dated` whether it files usage
/// under the date it is given (`None`: not known), and `guard` how far from a month's end its clock is trusted.
#[must_use]
pub fn filing(month: BillingMonth, now: Timestamp, zone: &TimeZone, dated: Option<bool>, guard: Duration) -> Filing {
    let current = BillingMonth::of(now);
    if month > current {
        return Filing::Wait;
    }
    let of_server = |at: Timestamp| BillingMonth::of_date(at.to_zoned(zone.clone()).date());
    if month == current {
        let sure = [before(now, guard), now, after(now, guard)].into_iter().all(|at| of_server(at) == month);
        return match dated {
            _ if sure => Filing::Now,
            None => Filing::Ask,
            Some(false) => Filing::Wait,
            Some(true) => {
                let latest = month.next().start().checked_sub(WIDEST).unwrap_or(now);
                let date = now.min(latest);
                if of_server(date) == month { Filing::Dated(date) } else { Filing::Wait }
            }
        };
    }
    match dated {
        None => Filing::Ask,
        Some(false) => Filing::Closed,
        // Far from both ends, so that no zone moves it into another month.
        Some(true) => Filing::Dated(after(month.start(), Duration::from_secs(14 * 86_400 + 43_200))),
    }
}

/// Whether `month` is surely over where the server cuts its months, so that what it shows there now was filed by its date.
#[must_use]
pub fn is_over(month: BillingMonth, now: Timestamp, zone: &TimeZone, guard: Duration) -> bool {
    [before(now, guard), now].into_iter().all(|at| BillingMonth::of_date(at.to_zoned(zone.clone()).date()) > month)
}

fn before(from: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|d| from.checked_sub(d).ok()).unwrap_or(Timestamp::MIN)
}
