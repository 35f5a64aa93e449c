//! `--prometheus`: a job's metrics over HTTP. A request is read as far as its first line; its other
//! lines change nothing.
//! Law: nothing is answered before a request is complete, but one that is too long.

use std::time::Duration;

use ringreduce::trace::NameLabels;

use super::tcp::{Reply, Session};
use super::{Snapshots, metrics};

/// The longest request, without a body.
const MAX_REQUEST_BYTES: usize = 8 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A connection of a client, which takes one request.
#[derive(Default)]
pub(super) struct HttpSession;

/// The metrics of a job.
pub(super) struct Metrics {
    snapshots: Snapshots,
    /// The communicators that have had a label.
    names: NameLabels,
}

impl Metrics {
    pub(super) const fn new(snapshots: Snapshots) -> Self {
        Self { snapshots, names: NameLabels::new() }
    }

    fn text(&mut self) -> &str {
        let names = &mut self.names;
        self.snapshots.text("metrics", |latest| metrics::text(&latest.ranks, latest.time, names))
    }
}

impl Session for HttpSession {
    const MAX_REQUEST_BYTES: usize = MAX_REQUEST_BYTES;
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
    type Source = Metrics;

    fn reply(&mut self, bytes: &[u8], source: &mut Metrics) -> Reply {
        Reply::Last(match Request::read(bytes) {
            Request::Incomplete => return Reply::Incomplete,
            Request::Metrics => answer("200 OK", OPEN_METRICS, source.text()),
            Request::Home => home(),
            Request::Refused(why) => refusal(why),
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// More of it has to come.
    Incomplete,
    Metrics,
    Home,
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Malformed,
    NotFound,
    /// A method other than GET. The answer to HEAD has no body.
    Method {
        is_head: bool,
    },
    TooLong,
}

impl Request {
    /// The request that these bytes begin.
    fn read(bytes: &[u8]) -> Self {
        if !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            let is_too_long = bytes.len() >= MAX_REQUEST_BYTES;
            return if is_too_long { Self::Refused(Refusal::TooLong) } else { Self::Incomplete };
        }
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let [method, target, b"HTTP/1.1" | b"HTTP/1.0"] = words[..] else {
            return Self::Refused(Refusal::Malformed);
        };
        let is_method = !method.is_empty() && method.iter().all(u8::is_ascii_alphabetic);
        match path(target) {
            _ if !is_method => Self::Refused(Refusal::Malformed),
            _ if method != b"GET" => Self::Refused(Refusal::Method { is_head: method == b"HEAD" }),
            b"/metrics" => Self::Metrics,
            b"/" => Self::Home,
            _ => Self::Refused(Refusal::NotFound),
        }
    }
}

/// The path of a request's target, which a proxy may give with scheme and authority (RFC 9112,
/// section 3.2.2).
fn path(target: &[u8]) -> &[u8] {
    let path = match target.strip_prefix(b"http://") {
        Some(rest) => {
            rest.iter().position(|byte| *byte == b'/').map_or(&b"/"[..], |at| &rest[at..])
        }
        None => target,
    };
    path.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// The answer that says where the metrics are.
fn home() -> Vec<u8> {
    answer("200 OK", TEXT, "The metrics of this job of ringrun are at /metrics.\n")
}

fn refusal(why: Refusal) -> Vec<u8> {
    let (status, text) = match why {
        Refusal::Malformed => ("400 Bad Request", "This is no request of HTTP/1.1.\n"),
        Refusal::NotFound => ("404 Not Found", "The metrics are at /metrics.\n"),
        Refusal::Method { is_head: true } => ("405 Method Not Allowed\r\nAllow: GET", ""),
        Refusal::Method { is_head: false } => {
            ("405 Method Not Allowed\r\nAllow: GET", "Only GET is answered.\n")
        }
        Refusal::TooLong => {
            ("431 Request Header Fields Too Large", "A request has 8 KiB at most.\n")
        }
    };
    answer(status, TEXT, text)
}

/// An answer, whose connection carries no other one.
fn answer(status: &str, content: &str, text: &str) -> Vec<u8> {
    let len = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n"
    );
    [head.as_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_requests_alone_are_answered() {
        let malformed = Request::Refused(Refusal::Malformed);
        let method = |is_head| Request::Refused(Refusal::Method { is_head });
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Request::Metrics),
            ("GET /metrics?name=x HTTP/1.0\r\n\r\n", Request::Metrics),
            ("GET / HTTP/1.1\r\n\r\nGET /", Request::Home),
            ("GET http://a:1/metrics?x HTTP/1.1\r\n\r\n", Request::Metrics),
            ("GET http://a HTTP/1.1\r\n\r\n", Request::Home),
            ("GET /metrics HTTP/1.1\r\n", Request::Incomplete),
            ("GET /metrics HTTP/1.1\n\n", Request::Incomplete),
            ("", Request::Incomplete),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Request::Refused(Refusal::NotFound)),
            ("GET /../metrics HTTP/1.1\r\n\r\n", Request::Refused(Refusal::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", method(false)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", method(true)),
            ("get /metrics HTTP/1.1\r\n\r\n", method(false)),
            ("GET /metrics HTTP/2.0\r\n\r\n", malformed),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Request::Refused(Refusal::Malformed)),
            ("GET /metrics\r\n\r\n", Request::Refused(Refusal::Malformed)),
            ("\r\n\r\n", Request::Refused(Refusal::Malformed)),
            (" / HTTP/1.1\r\n\r\n", Request::Refused(Refusal::Malformed)),
            ("\u{16}\u{3}\u{1} / HTTP/1.1\r\n\r\n", Request::Refused(Refusal::Malformed)),
        ] {
            assert_eq!(Request::read(text.as_bytes()), expected, "{text:?}");
        }
        let long = vec![b'a'; MAX_REQUEST_BYTES];
        assert_eq!(Request::read(&long[1..]), Request::Incomplete);
        assert_eq!(Request::read(&long), Request::Refused(Refusal::TooLong));
    }

    #[test]
    fn the_length_of_an_answer_is_that_of_its_body() {
        let all = [Refusal::Malformed, Refusal::NotFound, Refusal::TooLong];
        let methods = [true, false].map(|is_head| Refusal::Method { is_head });
        let refusals = all.into_iter().chain(methods).map(refusal);
        for bytes in refusals.chain([home(), answer("200 OK", OPEN_METRICS, "# EOF\n")]) {
            let text = String::from_utf8(bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
        }
    }
}
