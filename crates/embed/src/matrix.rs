//! Matrices of eight-bit weights, and their product with activations.
//!
//! A row of weights is stored as bytes with one scale. Activations are rounded to thirteen bits per
//! token, which loses nothing that matters and lets one instruction multiply and add pairs.
//! The widest vectors of the machine are chosen at run time; other machines use the portable loop.

#![allow(
    clippy::inline_always,
    reason = "only inlined functions are compiled for the vectors of the machine"
)]

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::lanes::{Lanes, Portable};

/// Activations are rounded to this many steps. The sum of 5 000 products of a step and a weight
/// fits in 32 bits.
const ACTIVATION_STEPS: f32 = 4095.0;
/// 1.5 · 2^23: the numbers from 2^23 to 2^24 are whole.
const ROUNDING: f32 = 12_582_912.0;
/// Weights are rounded to this many steps.
const WEIGHT_STEPS: f32 = 127.0;
/// How many tokens are multiplied with a row of weights at a time.
const TOKENS_PER_BLOCK: usize = 4;
/// The length of rows is a multiple of this.
pub(crate) const ROW_UNIT: usize = 32;

/// Whether a product is computed on several cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// On all of them: the caller waits for one short text.
    All,
    /// On this one: others compute other texts.
    One,
}

/// A matrix with one byte per weight.
#[derive(Debug)]
pub(crate) struct QuantizedMatrix {
    columns: usize,
    values: Vec<i8>,
    /// The value of one step in each row.
    scales: Vec<f32>,
}

impl QuantizedMatrix {
    /// Builds a matrix from its parts; `None` if their lengths do not match.
    pub(crate) fn from_parts(columns: usize, values: Vec<i8>, scales: Vec<f32>) -> Option<Self> {
        let fits = columns > 0
            && columns.is_multiple_of(ROW_UNIT)
            && values.len() == columns * scales.len()
            && scales.iter().all(|scale| scale.is_finite());
        fits.then_some(Self {
            columns,
            values,
            scales,
        })
    }

    /// Rounds each row of a matrix of numbers.
    pub(crate) fn quantize(columns: usize, numbers: &[f32]) -> Option<Self> {
        let mut values = Vec::with_capacity(numbers.len());
        let mut scales = Vec::with_capacity(numbers.len() / columns.max(1));
        for row in numbers.chunks_exact(columns.max(1)) {
            let scale = largest_magnitude(row) / WEIGHT_STEPS;
            let steps = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            #[allow(clippy::cast_possible_truncation, reason = "at most 127")]
            values.extend(row.iter().map(|number| (number * steps).round() as i8));
            scales.push(scale);
        }
        Self::from_parts(columns, values, scales)
    }

    pub(crate) fn values(&self) -> &[i8] {
        &self.values
    }

    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Writes the numbers of a row into a slice.
    pub(crate) fn copy_row(&self, row: usize, into: &mut [f32]) {
        let Some(scale) = self.scales.get(row) else {
            return;
        };
        let values = &self.values[row * self.columns..(row + 1) * self.columns];
        for (number, value) in into.iter_mut().zip(values) {
            *number = f32::from(*value) * scale;
        }
    }

    /// Multiplies each token with each row and adds the bias. The result has one row per token.
    pub(crate) fn multiply(&self, input: &Activations, bias: &[f32], cores: Cores) -> Vec<f32> {
        let (rows, tokens) = (self.scales.len(), input.scales.len());
        // One row per row of weights, so that each core writes to a part of its own.
        let mut products = vec![0_i32; rows * tokens];
        let multiply = |(rows, products): (&[i8], &mut [i32])| {
            multiply_rows(rows, &input.steps, self.columns, products);
        };
        let rows_per_part = match cores {
            Cores::All => rows.div_ceil(rayon::current_num_threads()),
            Cores::One => rows,
        };
        let weights = rows_per_part * self.columns;
        if rows_per_part < rows {
            let parts = self.values.par_chunks(weights);
            parts
                .zip(products.par_chunks_mut(rows_per_part * tokens))
                .for_each(multiply);
        } else {
            multiply((&self.values, &mut products));
        }
        self.scale_products(&products, &input.scales, bias)
    }

    /// Turns products into numbers, with one row per token.
    fn scale_products(&self, products: &[i32], token_scales: &[f32], bias: &[f32]) -> Vec<f32> {
        let (rows, tokens) = (self.scales.len(), token_scales.len());
        let mut output = vec![0.0; rows * tokens];
        // A few rows at a time, so that what is read and written stays in the cache.
        for from in (0..rows).step_by(ROW_UNIT) {
            let block = from..(from + ROW_UNIT).min(rows);
            for (token, step) in token_scales.iter().enumerate() {
                let output = &mut output[token * rows..(token + 1) * rows][block.clone()];
                let rows = block.clone().zip(&self.scales[block.clone()]);
                for (((row, scale), bias), output) in
                    rows.zip(&bias[block.clone()]).zip(output.iter_mut())
                {
                    #[allow(clippy::cast_precision_loss, reason = "a few digits are enough")]
                    let product = products[row * tokens + token] as f32;
                    *output = product * scale * step + bias;
                }
            }
        }
        output
    }
}

/// The activations of some tokens, rounded.
#[derive(Debug)]
pub(crate) struct Activations {
    steps: Vec<i16>,
    scales: Vec<f32>,
}

impl Activations {
    /// Rounds the numbers of each token, of which there are `columns`.
    pub(crate) fn quantize(columns: usize, numbers: &[f32]) -> Self {
        let mut steps = vec![0; numbers.len()];
        let mut scales = vec![0.0; numbers.len() / columns];
        Arch::new().dispatch(RoundTokens {
            columns,
            numbers,
            steps: &mut steps,
            scales: &mut scales,
        });
        Self { steps, scales }
    }
}

struct RoundTokens<'a> {
    columns: usize,
    numbers: &'a [f32],
    steps: &'a mut [i16],
    scales: &'a mut [f32],
}

impl NullaryFnOnce for RoundTokens<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let tokens = self.numbers.chunks_exact(self.columns);
        let steps = self.steps.chunks_exact_mut(self.columns);
        for ((numbers, steps), token_scale) in tokens.zip(steps).zip(self.scales) {
            let scale = largest_magnitude(numbers) / ACTIVATION_STEPS;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (step, number) in steps.iter_mut().zip(numbers) {
                // Adding a large number leaves no place for digits after the point.
                let rounded = (number * inverse + ROUNDING).to_bits().cast_signed();
                let rounded = rounded.wrapping_sub(ROUNDING.to_bits().cast_signed());
                #[allow(clippy::cast_possible_truncation, reason = "at most 4095")]
                let rounded = rounded as i16;
                *step = rounded;
            }
            *token_scale = scale;
        }
    }
}

#[inline(always)]
fn largest_magnitude(numbers: &[f32]) -> f32 {
    let (chunks, rest) = numbers.as_chunks::<16>();
    let mut most = [0.0_f32; 16];
    for chunk in chunks {
        for (most, x) in most.iter_mut().zip(chunk) {
            *most = if x.abs() > *most { x.abs() } else { *most };
        }
    }
    most.iter()
        .chain(rest)
        .fold(0.0, |most, x| most.max(x.abs()))
}

/// Multiplies rows of weights with all tokens; `products` has one row per row of weights.
fn multiply_rows(rows: &[i8], tokens: &[i16], columns: usize, products: &mut [i32]) {
    match Arch::new() {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => simd.vectorize(RowProducts {
            lanes: simd,
            rows,
            tokens,
            columns,
            products,
        }),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(RowProducts {
            lanes: simd,
            rows,
            tokens,
            columns,
            products,
        }),
        _ => multiply_with(Portable, rows, tokens, columns, products),
    }
}

#[cfg(target_arch = "x86_64")]
struct RowProducts<'a, L> {
    lanes: L,
    rows: &'a [i8],
    tokens: &'a [i16],
    columns: usize,
    products: &'a mut [i32],
}

#[cfg(target_arch = "x86_64")]
impl<L: Lanes> NullaryFnOnce for RowProducts<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        multiply_with(
            self.lanes,
            self.rows,
            self.tokens,
            self.columns,
            self.products,
        );
    }
}

#[inline(always)]
fn multiply_with<L: Lanes>(
    lanes: L,
    rows: &[i8],
    tokens: &[i16],
    columns: usize,
    products: &mut [i32],
) {
    let count = tokens.len() / columns;
    let pairs = rows.chunks(2 * columns);
    for (pair, products) in pairs.zip(products.chunks_mut(2 * count)) {
        if pair.len() == 2 * columns {
            let (first, second) = pair.split_at(columns);
            let (one, other) = products.split_at_mut(count);
            multiply_tokens(lanes, [first, second], tokens, columns, [one, other]);
        } else {
            multiply_tokens(lanes, [pair], tokens, columns, [products]);
        }
    }
}

/// Multiplies some rows with all tokens, a block of tokens at a time.
#[inline(always)]
fn multiply_tokens<L: Lanes, const R: usize>(
    lanes: L,
    rows: [&[i8]; R],
    tokens: &[i16],
    columns: usize,
    mut products: [&mut [i32]; R],
) {
    let mut at = 0;
    let mut blocks = tokens.chunks_exact(TOKENS_PER_BLOCK * columns);
    for block in &mut blocks {
        let (first, second) = block.split_at(2 * columns);
        let (a, b) = first.split_at(columns);
        let (c, d) = second.split_at(columns);
        let found = multiply_block(lanes, rows, [a, b, c, d]);
        for (products, found) in products.iter_mut().zip(found) {
            products[at..at + TOKENS_PER_BLOCK].copy_from_slice(&found);
        }
        at += TOKENS_PER_BLOCK;
    }
    for token in blocks.remainder().chunks_exact(columns) {
        let found = multiply_block(lanes, rows, [token]);
        for (products, [found]) in products.iter_mut().zip(found) {
            products[at] = found;
        }
        at += 1;
    }
}

#[inline(always)]
fn multiply_block<L: Lanes, const R: usize, const N: usize>(
    lanes: L,
    rows: [&[i8]; R],
    tokens: [&[i16]; N],
) -> [[i32; N]; R] {
    let mut sums = [[lanes.zero(); N]; R];
    let columns = rows.first().map_or(0, |row| row.len());
    let mut at = 0;
    while at + L::WIDTH <= columns {
        // Loops instead of `map`, which is not always inlined.
        let mut weights = [lanes.zero_numbers(); R];
        for (weights, row) in weights.iter_mut().zip(rows) {
            *weights = lanes.load_weights(&row[at..at + L::WIDTH]);
        }
        for (place, token) in tokens.iter().enumerate() {
            let token = lanes.load_token(&token[at..at + L::WIDTH]);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                sums[place] = lanes.add_products(sums[place], weights, token);
            }
        }
        at += L::WIDTH;
    }
    let mut totals = [[0; N]; R];
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sums) in totals.iter_mut().zip(sums) {
            *total = lanes.total(sums);
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine(count: usize, pace: f32) -> Vec<f32> {
        let mut at = 0.0;
        let next = std::iter::repeat_with(|| {
            at += pace;
            f32::sin(at)
        });
        next.take(count).collect()
    }

    /// Every set of vectors that this machine has gives the products of the portable loop.
    #[test]
    fn vectors_of_the_machine_agree_with_the_portable_loop() {
        for (rows, tokens, columns) in [(1, 1, 32), (5, 4, 64), (7, 9, 384), (3, 2, 1536)] {
            let weights = QuantizedMatrix::quantize(columns, &sine(rows * columns, 0.37)).unwrap();
            let input = Activations::quantize(columns, &sine(tokens * columns, 1.13));
            let mut portable = vec![0; rows * tokens];
            let (w, t) = (weights.values(), &input.steps);
            multiply_with(Portable, w, t, columns, &mut portable);
            let mut best = vec![0; rows * tokens];
            multiply_rows(w, t, columns, &mut best);
            assert_eq!(best, portable, "{rows} {tokens} {columns}");
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V3::try_new() {
                let mut products = vec![0; rows * tokens];
                multiply_with(simd, w, t, columns, &mut products);
                assert_eq!(products, portable, "{rows} {tokens} {columns}");
            }
        }
    }

    #[test]
    fn products_are_those_of_the_numbers_on_one_core_and_on_all() {
        let (rows, tokens, columns) = (6, 5, 96);
        let (weights, input) = (sine(rows * columns, 0.7), sine(tokens * columns, 0.2));
        let bias = sine(rows, 1.0);
        let matrix = QuantizedMatrix::quantize(columns, &weights).unwrap();
        let activations = Activations::quantize(columns, &input);
        let one = matrix.multiply(&activations, &bias, Cores::One);
        assert_eq!(one, matrix.multiply(&activations, &bias, Cores::All));
        for (token, input) in input.chunks(columns).enumerate() {
            for (row, weights) in weights.chunks(columns).enumerate() {
                let exact: f32 = input.iter().zip(weights).map(|(a, b)| a * b).sum();
                let got = one[token * rows + row] - bias[row];
                assert!((got - exact).abs() < 0.4, "{got} {exact}");
            }
        }
    }

    #[test]
    fn rows_of_other_lengths_are_refused() {
        assert!(QuantizedMatrix::quantize(33, &sine(66, 0.1)).is_none());
        assert!(QuantizedMatrix::from_parts(32, vec![0; 63], vec![1.0; 2]).is_none());
        assert!(QuantizedMatrix::quantize(0, &[]).is_none());
    }
}
