//! JSON bodies into values, with the place of a mistake.

use serde::Deserialize;

/// Where in the body a value was not what was expected, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) at: String,
    pub(crate) cause: String,
}

/// Decodes a whole body. The path of a mistake is looked for only when there is one: tracking it costs time on every field
/// and the usage ledger has millions of them.
pub(crate) fn decode<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Mistake> {
    // A text that is known to be one need not be looked at string by string.
    let decoded = match std::str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    let fault = match decoded {
        Ok(value) => return Ok(value),
        Err(fault) => fault,
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(located) => Err(Mistake { at: located.path().to_string(), cause: located.inner().to_string() }),
        // The value itself was fine, something follows it.
        Ok(_) => Err(Mistake { at: ".".to_owned(), cause: fault.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "rows")]
        _rows: Vec<Inner>,
    }
    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(rename = "spend", deserialize_with = "crate::number::decimal")]
        _spend: rust_decimal::Decimal,
    }

    #[test]
    fn a_mistake_names_its_place() {
        let mistake = decode::<Outer>(br#"{"rows":[{"spend":1},{"spend":null}]}"#).unwrap_err();
        assert_eq!(mistake.at, "rows[1].spend");
        assert_eq!(mistake.cause, "expected a number at line 1 column 35");
    }

    #[test]
    fn cut_and_trailing_bytes_are_mistakes() {
        assert!(decode::<Outer>(br#"{"rows":[{"spend":1}"#).is_err());
        assert!(decode::<Outer>(br#"{"rows":[]} x"#).is_err());
        assert!(decode::<Outer>(b"").is_err());
        assert!(decode::<Outer>(b"<html>").is_err());
        decode::<Outer>(br#"{"rows":[]}"#).unwrap();
    }
}

#[cfg(test)]
pub(crate) mod mangle {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::{Value, json};

    /// The body of a recorded exchange.
    pub(crate) fn recorded(name: &str) -> Value {
        let file = format!("{}/../fixtures/recordings/litellm/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let recording: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        recording["body"].clone()
    }

    /// Every place in a body, as JSON pointers.
    fn places(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    places(item, &format!("{at}/{n}"), all);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    places(field, &format!("{at}/{name}"), all);
                }
            }
            _ => {}
        }
    }

    /// Decodes a recorded body with one value replaced by something strange. That may fail; it may not panic. Gives back
    /// whether it was read.
    pub(crate) fn read<T: serde::de::DeserializeOwned>(name: &str, place: usize, with: usize) -> bool {
        let strange = [json!(null), json!(-1), json!(1e300), json!("x"), json!([]), json!({}), json!(true), json!("1e999999999999")];
        let mut body = recorded(name);
        let mut all = Vec::new();
        places(&body, "", &mut all);
        *body.pointer_mut(&all[place % all.len()]).unwrap() = strange[with % strange.len()].clone();
        super::decode::<T>(body.to_string().as_bytes()).is_ok()
    }
}
