//! Style of pages of figures.

/// Style sheet. `modelled` is the box at the head that states what the numbers are.
pub const STYLE: &str = "
body { font: 15px/1.5 sans-serif; color: #222; }
body { max-width: 1340px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2.4em; }
.modelled { border: 2px solid #b04a00; background: #fff4e8; padding: .6em 1em; }
.charts { display: flex; flex-wrap: wrap; gap: 12px; }
.charts svg { max-width: 100%; height: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: left; vertical-align: top; }
th { background: #f3f3f3; } td.number { text-align: right; } td.lines { white-space: pre-line; }
summary { cursor: pointer; } .note { color: #444; max-width: 60em; }
";
