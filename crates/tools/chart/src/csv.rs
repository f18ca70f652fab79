//! Fields of a CSV file (RFC 4180).

/// Quotes a field that may contain a comma, a quotation mark or a line break.
pub fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// Formats a value; an empty field if nothing was measured.
pub fn maybe(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: whatever its content, a field stays one field; missing values are empty.
    #[test]
    fn fields_stay_fields() {
        assert_eq!(quoted("rolex"), "rolex");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(maybe(Some(0.5)), "0.5");
        assert_eq!(maybe(None::<u64>), "");
    }
}
