//! Types shared by several parts of the API.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::lenient;

/// Limits by component type, in the component's own unit. A component without an entry has no limit set.
pub type Limits = BTreeMap<String, Decimal>;

/// An address shown to the customer on the resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Endpoint {
    /// Label, e.g. `OpenAI API`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// The address.
    #[serde(default, deserialize_with = "lenient::text")]
    pub url: String,
}

/// One section of the report shown to the customer on the resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReportSection {
    /// Heading.
    #[serde(default, deserialize_with = "lenient::text")]
    pub header: String,
    /// Text below it.
    #[serde(default, deserialize_with = "lenient::text")]
    pub body: String,
}

/// Makes an enum over the server's words that keeps words it does not know.
macro_rules! server_words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
            /// A word this crate does not know, as the server wrote it; empty where the server gave none.
            Other(String),
        }

        impl $name {
            /// The server's word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
                Ok(Self::from($crate::lenient::text(field)?.as_str()))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
    };
}
pub(crate) use server_words;
