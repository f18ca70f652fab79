//! Promises of both levels together.

use proptest::prelude::*;

use super::*;

/// Encodes and decodes a top model.
fn again(top: &TopModel) -> Option<TopModel> {
    let lines = top.lines().iter();
    let lines: Option<Vec<_>> = lines
        .map(|line| TopLine::from_words(&line.words()))
        .collect();
    TopModel::from_lines(lines?, top.sub_model_count())
}

/// Checks every key of `asked` against pieces with these lows.
fn check(lows: &[u64], lows_per_sub_model: usize, asked: impl IntoIterator<Item = u64>) {
    let top = TopModel::fit(lows, lows_per_sub_model);
    assert_eq!(again(&top), Some(top.clone()));
    let line_count_max = 64 + lows.len() / 16;
    assert!(top.lines().len() <= line_count_max, "{}", top.lines().len());
    for x in asked {
        let sub_model = top.sub_model_of(x);
        let span = top.span(sub_model).expect("x is sent there");
        assert!(span.contains(&x), "{x}: {span:?}");
        let pieces = pieces_of(lows, &span);
        let model = SubModel::fit(&lows[pieces.clone()], &span);
        let truth = lows.partition_point(|low| *low <= x) - 1;
        assert!(pieces.contains(&truth), "{x} is in {truth}, not {pieces:?}");
        let wanted = (truth - pieces.start) as u32;
        let range = model.range(x);
        assert!(range.contains(&wanted), "{x} is in {wanted}, not {range:?}");
        assert_eq!(SubModel::from_words(&model.words()), Some(model));
        assert!(range.end() - range.start() < model.range_length_max());
        let residuals: Vec<u16> = lows[pieces]
            .iter()
            .zip(0..)
            .map(|(low, piece)| model.residual(piece, *low))
            .collect();
        let in_range = residuals[*range.start() as usize..=*range.end() as usize].iter();
        let narrow = model.narrow(x, range.clone(), in_range.copied());
        assert!(
            narrow.contains(&wanted),
            "{x} is in {wanted}, not {narrow:?}"
        );
        assert!(*range.end() < model.piece_count());
    }
}

/// Lows of all shapes: the first is 0, as that of the first leaf.
fn lows() -> impl Strategy<Value = Vec<u64>> {
    let cluster = (any::<u64>(), 0_u32..63, 1_usize..60);
    proptest::collection::vec(cluster, 1..6).prop_map(|clusters| {
        let mut lows: Vec<u64> = vec![0];
        for (from, shift, count) in clusters {
            let distance = (from >> 1 | 1) >> shift;
            lows.extend(
                (0..count as u64).map(|step| from.wrapping_add(step.wrapping_mul(distance.max(1)))),
            );
        }
        lows.sort_unstable();
        lows.dedup();
        lows
    })
}

proptest! {
    /// Promise: for any pieces, the range that a key's sub-model predicts contains the piece that
    /// covers the key: for lows, keys near them, and any keys.
    #[test]
    fn every_key_is_in_its_range(
        lows in lows(),
        lows_per_sub_model in 1_usize..80,
        random in proptest::collection::vec(any::<u64>(), 20),
    ) {
        let around = lows.iter().flat_map(|low| {
            [*low, low.saturating_sub(1), low.saturating_add(1)]
        });
        let asked = around.chain(random).chain([0, u64::MAX]);
        check(&lows, lows_per_sub_model, asked);
    }

    /// Promise: spans belong to their sub-models, and cover every key exactly once.
    #[test]
    fn spans_tile_the_keys(lows in lows(), lows_per_sub_model in 1_usize..80) {
        let top = TopModel::fit(&lows, lows_per_sub_model);
        let mut next = Some(0);
        for sub_model in 0..top.sub_model_count() {
            let Some(span) = top.span(sub_model) else { continue };
            prop_assert_eq!(Some(*span.start()), next);
            prop_assert_eq!(top.sub_model_of(*span.start()), sub_model);
            prop_assert_eq!(top.sub_model_of(*span.end()), sub_model);
            next = span.end().checked_add(1);
        }
        prop_assert_eq!(next, None);
    }
}

proptest! {
    /// Promise: any words decode to a model or to nothing, and a model predicts a position for any
    /// key.
    #[test]
    fn any_words_can_be_read(words: [u64; 5], x: u64) {
        if let Some(model) = SubModel::from_words(&words) {
            prop_assert!(*model.range(x).end() < model.piece_count());
        }
        let [first_x, slope, intercept, number, count] = words;
        let lines = [[0, slope, intercept, 0], [first_x, slope, intercept, number % 9]];
        let lines = lines.iter().filter_map(TopLine::from_words).collect();
        if let Some(top) = TopModel::from_lines(lines, (count % 9) as u32) {
            let number = top.sub_model_of(x);
            prop_assert!(number < top.sub_model_count());
            prop_assert!(top.span(number).is_some_and(|span| span.contains(&x)));
        }
    }
}

/// Words that are not a line, or have no pieces, are rejected.
#[test]
fn words_of_no_model_are_refused() {
    let model = SubModel::fit(&[3, 9], &(3..=20));
    let words = model.words();
    let with = |index: usize, word: u64| {
        let mut words = words;
        words[index] = word;
        SubModel::from_words(&words)
    };
    assert_eq!(with(1, f64::NAN.to_bits()), None);
    assert_eq!(with(1, (-1.0_f64).to_bits()), None);
    assert_eq!(with(2, f64::INFINITY.to_bits()), None);
    assert_eq!(with(3, 0), None);
    assert_eq!(with(3, 1 << 32), None);
    assert_eq!(with(4, f32::NAN.to_bits().into()), None);
    let line = |first_x, number| TopLine::from_words(&[first_x, 0, 0, number]);
    assert_eq!(line(0, 1 << 32), None);
    let top = |lines: &[(u64, u64)], count| {
        let lines: Option<_> = lines.iter().map(|it| line(it.0, it.1)).collect();
        TopModel::from_lines(lines.expect("lines"), count)
    };
    assert!(top(&[(5, 0), (6, 1)], 2).is_some());
    assert_eq!(top(&[], 1), None);
    assert_eq!(
        top(&[(5, 0), (6, 1)], 1),
        None,
        "no sub-model of the last line"
    );
    assert_eq!(
        top(&[(5, 0), (6, 0)], 1),
        None,
        "no sub-model of the first line"
    );
    assert_eq!(top(&[(5, 1)], 2), None, "keys of no sub-model");
    assert_eq!(top(&[(6, 0), (6, 1)], 2), None, "two lines at once");
}

/// Equally spaced pieces are predicted within one, wherever the keys are.
#[test]
fn a_line_is_learned() {
    for from in [0, 1 << 40, 1 << 62, u64::MAX - 1_000_000] {
        let lows: Vec<u64> = (0..1000).map(|piece| from + piece * 1000).collect();
        let span = from..=from + 999_999;
        let model = SubModel::fit(&lows, &span);
        assert!(model.range_length_max() <= 2, "{from}: {model:?}");
        let counts = (0..1000).map(|piece| {
            let range = model.range(from + piece * 1000 + 500);
            range.end() - range.start() + 1
        });
        assert_eq!(counts.max(), Some(1), "in the middle of a piece it is one");
        let top = TopModel::fit(&lows, 100);
        assert_eq!((top.lines().len(), top.sub_model_count()), (1, 10));
        let counts = (0..10).map(|sub_model| {
            let span = top.span(sub_model).expect("all have keys");
            pieces_of(&lows, &span).len()
        });
        assert!(counts.clone().all(|count| (99..=102).contains(&count)));
    }
}

/// Promise: the last piece's end at the last key and the first one's beginning at the first key
/// cause no error, however far they are from the others.
#[test]
fn ends_are_no_errors() {
    let lows: Vec<u64> = (0..100).map(|piece| (1 << 40) + piece * 30).collect();
    let model = SubModel::fit(&lows, &(0..=u64::MAX));
    let lows_alone = SubModel::fit(&lows, &(1 << 40..=(1 << 40) + 2999));
    assert!(lows_alone.range_length_max() <= 2);
    assert!(model.range_length_max() <= 20, "{model:?}");
    assert_eq!(model.range(0), 0..=0);
    assert_eq!(model.range(u64::MAX), 99..=99);
}

/// Promise: for random keys, whose range has several pieces, residuals leave one.
#[test]
fn residuals_name_the_piece() {
    let mut state = 1_u64;
    let mut xs: Vec<u64> = (0..20_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 4
        })
        .collect();
    xs.sort_unstable();
    // Pieces begin between keys, as loaded leaves do.
    let between = xs[5..].windows(2).step_by(6);
    let between = between.map(|pair| pair[0].midpoint(pair[1]));
    let lows: Vec<u64> = core::iter::once(0).chain(between).collect();
    let top = TopModel::fit(&lows, 32);
    let (mut in_range, mut in_narrow) = (0, 0);
    for x in &xs {
        let span = top.span(top.sub_model_of(*x)).expect("x is sent there");
        let pieces = pieces_of(&lows, &span);
        let model = SubModel::fit(&lows[pieces.clone()], &span);
        let range = model.range(*x);
        let of_range = &lows[pieces][*range.start() as usize..];
        let residuals = of_range.iter().zip(*range.start()..);
        let residuals = residuals.map(|(low, piece)| model.residual(piece, *low));
        let narrow = model.narrow(*x, range.clone(), residuals);
        in_range += range.end() - range.start() + 1;
        in_narrow += narrow.end() - narrow.start() + 1;
    }
    let count = xs.len() as f64;
    assert!(f64::from(in_range) / count > 2.0, "{in_range}");
    assert!(f64::from(in_narrow) / count < 1.02, "{in_narrow}");
}

/// One piece, one sub-model, and equal lows work without a division by zero.
#[test]
fn the_least_there_is_works() {
    check(&[0], 1, [0, 5, u64::MAX]);
    check(&[0], 64, [0, 5, u64::MAX]);
    check(&[0, u64::MAX], 1, [0, 1, u64::MAX - 1, u64::MAX]);
    check(&clustered(9, 40), usize::MAX, [0, 5, u64::MAX]);
    let model = SubModel::fit(&[3], &(10..=20));
    assert_eq!(model.range(15), 0..=0);
}
/// Ascending numbers without a pattern.
fn random(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 1_u64;
    (0..count).map(move |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state
    })
}

/// Lows of leaves in dense, remote clusters, with one leaf between clusters.
fn clustered(cluster_count: usize, lows_per_cluster: u64) -> Vec<u64> {
    let mut begins: Vec<u64> = random(cluster_count).map(|it| it >> 1).collect();
    begins.sort_unstable();
    let mut lows = vec![0];
    for (begin, beyond) in begins.iter().zip(begins.iter().skip(1)) {
        lows.extend((0..lows_per_cluster).map(|step| begin + step * 24));
        lows.push(begin.midpoint(*beyond));
    }
    lows
}

/// Returns the mean number of lows in a key's predicted range, the number of lows of the fullest
/// sub-model, and the number of sub-models for each 64 lows.
fn quality(lows: &[u64]) -> (f64, usize, f64) {
    let top = TopModel::fit(lows, 64);
    let (mut lengths, mut most) = (0.0, 0);
    for number in 0..top.sub_model_count() {
        let Some(span) = top.span(number) else {
            continue;
        };
        let pieces = pieces_of(lows, &span);
        let model = SubModel::fit(&lows[pieces.clone()], &span);
        lengths += f64::from(model.range_length_max()) * pieces.len() as f64;
        most = most.max(pieces.len());
    }
    let count = lows.len() as f64;
    let sub_models = f64::from(top.sub_model_count()) * 64.0 / count;
    (lengths / count, most, sub_models)
}

/// Promise: keys in dense, remote clusters are predicted as well as others, and sent to sub-models
/// evenly, for any number of clusters.
#[test]
fn clusters_are_learned() {
    for (cluster_count, lows_per_cluster, sub_models_max) in [
        (2, 5000, 1.1),
        (70, 170, 1.5),
        (1000, 170, 1.5),
        (300, 40, 4.0),
    ] {
        let lows = clustered(cluster_count, lows_per_cluster);
        let (length, most, sub_models) = quality(&lows);
        let what = format!("{cluster_count} of {lows_per_cluster}: {length} {most} {sub_models}");
        assert!(length < 6.0, "{what}");
        assert!(most <= 256, "{what}");
        assert!(sub_models < sub_models_max, "{what}");
    }
}

/// Promise: the same holds for keys whose density passes through all powers of two; one line would
/// send half of them to one sub-model.
#[test]
fn powers_of_two_are_learned() {
    let mut lows: Vec<u64> = (0..1000)
        .flat_map(|step| (12..63).map(move |power| (1 << power) + (step << power) / 1000))
        .collect();
    lows.push(0);
    lows.sort_unstable();
    lows.dedup();
    let (length, most, sub_models) = quality(&lows);
    assert!(
        length < 6.0 && most <= 256 && sub_models < 1.5,
        "{length} {most} {sub_models}"
    );
}

/// Promise: for even keys the top model is one line, whatever their number.
#[test]
fn even_keys_are_one_line() {
    for count in [1, 2, 100, 100_000] {
        let mut keys: Vec<u64> = random(count * 6).collect();
        keys[0] = 0;
        keys.sort_unstable();
        let lows: Vec<u64> = keys.into_iter().step_by(6).collect();
        let top = TopModel::fit(&lows, 64);
        assert_eq!(top.lines().len(), 1, "{count}");
    }
}

/// Promise: if too many lines were needed, fewer and worse ones are used, and every key is still in
/// its range.
#[test]
fn lines_are_limited() {
    let lows = clustered(3000, 5);
    let top = TopModel::fit(&lows, 64);
    assert!(
        top.lines().len() <= 64 + lows.len() / 16,
        "{}",
        top.lines().len()
    );
    let asked = lows.iter().step_by(17).flat_map(|low| [*low, low + 1]);
    check(&lows, 64, asked);
}
