//! Conversion of bytes to text and back.

use farleaf_key::text::{
    TextError, TextFault, escape, from_base64, from_hex, to_base64, to_hex, unescape,
};
use proptest::prelude::*;

use crate::strategies as s;

fn error(char_index: usize, fault: TextFault) -> TextError {
    TextError { char_index, fault }
}

/// Pieces of text with a meaning to the decoders.
fn tricky_text() -> impl Strategy<Value = String> {
    let pieces = [
        "\\", "x", "n", "4", "f", "G", "=", "A", "/", "\u{e9}", "\u{301}", "\0", " ",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..9).prop_map(|it| it.concat())
}

proptest! {
    /// Encoded text decodes to the same bytes; for bytes, and for strings with all kinds of
    /// characters.
    #[test]
    fn text_is_exact(bytes in s::bytes(), string in any::<String>(), tricky in tricky_text()) {
        for bytes in [&bytes[..], string.as_bytes(), tricky.as_bytes()] {
            prop_assert_eq!(&unescape(&escape(bytes))?[..], bytes);
            prop_assert_eq!(&from_hex(&to_hex(bytes))?[..], bytes);
            prop_assert_eq!(&from_base64(&to_base64(bytes))?[..], bytes);
        }
    }

    /// Escaped text has no control characters.
    #[test]
    fn shown_text_is_harmless(bytes in s::bytes(), string in any::<String>()) {
        for bytes in [&bytes[..], string.as_bytes()] {
            prop_assert!(!escape(bytes).contains(char::is_control));
        }
    }

    /// Any text is decoded, or rejected with a place in it. Decoded Base64 text is the only
    /// encoding of its bytes; hex text is, except for the case of letters.
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![tricky_text(), any::<String>()]) {
        let char_count = text.chars().count();
        let check = |read: Result<Vec<u8>, TextError>| match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.char_index <= char_count => Ok(None),
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        };
        check(unescape(&text))?;
        if let Some(bytes) = check(from_hex(&text))? {
            prop_assert_eq!(to_hex(&bytes), text.to_ascii_lowercase());
        }
        if let Some(bytes) = check(from_base64(&text))? {
            prop_assert_eq!(to_base64(&bytes), text);
        }
    }
}

/// Tests which characters are escaped.
#[test]
fn escapes_are_as_documented() {
    let all_ascii: Vec<u8> = (0x20..0x7f).filter(|byte| *byte != b'\\').collect();
    assert_eq!(escape(&all_ascii).as_bytes(), all_ascii);
    assert_eq!(
        escape(b"\\\n\r\t\x00\x1b\x7f\x80"),
        r"\\\n\r\t\x00\x1b\x7f\x80"
    );
    assert_eq!(
        escape("\u{e9}\u{20ac}\u{1f980}".as_bytes()),
        "\u{e9}\u{20ac}\u{1f980}"
    );
    // Control characters beyond ASCII, a change of direction, and a zero-width space.
    assert_eq!(
        escape("\u{85}\u{202e}\u{200b}".as_bytes()),
        r"\xc2\x85\xe2\x80\xae\xe2\x80\x8b"
    );
    // A combining accent must follow an unescaped letter.
    assert_eq!(escape("e\u{301}".as_bytes()), "e\u{301}");
    assert_eq!(escape("\u{301}\n\u{301}".as_bytes()), r"\xcc\x81\n\xcc\x81");
    // Half a character, before a whole one.
    assert_eq!(escape(b"\xc3\xc3\xa9"), "\\xc3\u{e9}");
    assert_eq!(unescape(r"\x61\x6A\x6a"), Ok(b"ajj".to_vec()));
}

/// Errors name the invalid character.
#[test]
fn faults_in_escapes_have_their_places() {
    let unknown = |found| TextFault::UnknownEscape { found };
    let cases = [
        (r"\0", 1, unknown('0')),
        ("\u{e9}\\\u{e9}", 2, unknown('\u{e9}')),
        ("ab\\", 3, TextFault::UnfinishedEscape),
        (r"a\x", 3, TextFault::UnfinishedEscape),
        (r"a\x1", 4, TextFault::UnfinishedEscape),
        (r"a\xg1", 3, TextFault::NotHex { found: 'g' }),
        (r"a\x1 ", 4, TextFault::NotHex { found: ' ' }),
    ];
    for (text, char_index, fault) in cases {
        assert_eq!(unescape(text), Err(error(char_index, fault)), "{text}");
    }
    let message = unescape(r"C:\data").unwrap_err().to_string();
    assert_eq!(
        message,
        r"character 4: unknown escape \d; use \\, \n, \r, \t or \xNN"
    );
}

/// Hex is written in lower case and read in either; errors name the invalid character.
#[test]
fn hex_is_as_documented() {
    assert_eq!(to_hex(&[0x00, 0x9a, 0xff]), "009aff");
    assert_eq!(from_hex("009AfF"), Ok(vec![0x00, 0x9a, 0xff]));
    assert_eq!(from_hex(""), Ok(Vec::new()));
    assert_eq!(
        from_hex("0x12"),
        Err(error(1, TextFault::NotHex { found: 'x' }))
    );
    assert_eq!(
        from_hex("\u{e9}"),
        Err(error(0, TextFault::NotHex { found: '\u{e9}' }))
    );
    assert_eq!(
        from_hex("00\u{ff11}1"),
        Err(error(2, TextFault::NotHex { found: '\u{ff11}' }))
    );
    assert_eq!(from_hex("123"), Err(error(3, TextFault::HalfByte)));
    assert_eq!(
        from_hex("0 ").unwrap_err().to_string(),
        "character 2: ' ' is not a hexadecimal digit"
    );
}

/// Base64 follows RFC 4648, according to its test vectors, with padding, and with a single
/// spelling.
#[test]
fn base64_is_as_documented() {
    let vectors = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ];
    for (bytes, text) in vectors {
        assert_eq!(to_base64(bytes.as_bytes()), text);
        assert_eq!(from_base64(text).as_deref(), Ok(bytes.as_bytes()));
    }
    let not = |found| TextFault::NotBase64 { found };
    let cases = [
        ("Zm9v*A==", 4, not('*')),
        ("Zm9v\u{e9}A==", 4, not('\u{e9}')),
        ("Zm9vYg", 6, TextFault::UnfinishedBase64),
        ("Zm9vYg=", 7, TextFault::UnfinishedBase64),
        ("Zm9vY", 5, TextFault::UnfinishedBase64),
        ("Zh==", 1, not('h')),
        ("Zg==Zg==", 2, not('=')),
    ];
    for (text, char_index, fault) in cases {
        assert_eq!(from_base64(text), Err(error(char_index, fault)), "{text}");
    }
}
