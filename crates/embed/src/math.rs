//! The functions between the matrices, in loops that the compiler turns into vectors.
//!
//! Each is a value for `pulp::Arch::dispatch`, which compiles it for several machines. Everything in
//! them is inlined: a function that is called would be compiled for the oldest machine.

#![allow(
    clippy::inline_always,
    reason = "only inlined functions are compiled for the vectors of the machine"
)]

use pulp::NullaryFnOnce;

/// How many partial sums a dot product has.
const SUMS: usize = 16;

/// Normalises each row to mean 0 and variance 1, then scales and shifts it.
pub(crate) struct NormalizeRows<'a> {
    pub(crate) rows: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) epsilon: f32,
}

impl NullaryFnOnce for NormalizeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let length = self.weight.len() as f32;
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            let mean = sum(row) / length;
            for x in row.iter_mut() {
                *x -= mean;
            }
            let spread = 1.0 / (dot(row, row) / length + self.epsilon).sqrt();
            for ((x, weight), bias) in row.iter_mut().zip(self.weight).zip(self.bias) {
                *x = *x * spread * weight + bias;
            }
        }
    }
}

/// Adds numbers to numbers.
pub(crate) fn add(to: &mut [f32], numbers: &[f32]) {
    for (to, number) in to.iter_mut().zip(numbers) {
        *to += number;
    }
}

/// The GELU activation, with the error function to seven digits (Abramowitz and Stegun, 7.1.26).
pub(crate) struct Gelu<'a>(pub(crate) &'a mut [f32]);

impl NullaryFnOnce for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for x in self.0 {
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / (1.0 + 0.327_591_1 * z);
            let terms = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_8) * t - 0.284_496_74)
                * t
                + 0.254_829_6)
                * t;
            let erf = 1.0 - terms * exp(-z * z);
            *x = 0.5 * *x * (1.0 + erf.copysign(*x));
        }
    }
}

/// One head of attention: adds the attended values of each token to its row of the output.
pub(crate) struct AttentionHead<'a> {
    pub(crate) output: &'a mut [f32],
    /// Queries, keys and values: one row per token, with all heads side by side.
    pub(crate) projected: [&'a [f32]; 3],
    /// The length of a row.
    pub(crate) stride: usize,
    /// Where this head begins in a row, and how many numbers it has.
    pub(crate) start: usize,
    pub(crate) size: usize,
    /// What is added to the score of two tokens, by the distance of the second from the first plus
    /// the number of tokens.
    pub(crate) distance_bias: Option<&'a [f32]>,
}

impl NullaryFnOnce for AttentionHead<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let [queries, keys, values] = self.projected;
        let part = self.start..self.start + self.size;
        let tokens = keys.len() / self.stride;
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let scale = 1.0 / (self.size as f32).sqrt();
        // With one row per component the scores of several tokens are computed at a time.
        let mut transposed = vec![0.0; tokens * self.size];
        for (token, key) in keys.chunks_exact(self.stride).enumerate() {
            for (component, number) in key[part.clone()].iter().enumerate() {
                transposed[component * tokens + token] = number * scale;
            }
        }
        let mut scores = vec![0.0; tokens];
        let outputs = self.output.chunks_exact_mut(self.stride);
        for (token, (query, output)) in queries.chunks_exact(self.stride).zip(outputs).enumerate() {
            scores.fill(0.0);
            let components = transposed.chunks_exact(tokens);
            for (number, keys) in query[part.clone()].iter().zip(components) {
                for (score, key) in scores.iter_mut().zip(keys) {
                    *score += number * key;
                }
            }
            if let Some(bias) = self.distance_bias {
                let bias = &bias[tokens - token..];
                for (score, bias) in scores.iter_mut().zip(bias) {
                    *score += bias;
                }
            }
            softmax(&mut scores);
            let output = &mut output[part.clone()];
            for (score, value) in scores.iter().zip(values.chunks_exact(self.stride)) {
                for (sum, value) in output.iter_mut().zip(&value[part.clone()]) {
                    *sum += score * value;
                }
            }
        }
    }
}

#[inline(always)]
fn softmax(row: &mut [f32]) {
    let mut most = f32::NEG_INFINITY;
    for x in &*row {
        most = if *x > most { *x } else { most };
    }
    for x in row.iter_mut() {
        *x = exp(*x - most);
    }
    let total = 1.0 / sum(row);
    for x in row.iter_mut() {
        *x *= total;
    }
}

#[inline(always)]
fn sum(numbers: &[f32]) -> f32 {
    let (chunks, rest) = numbers.as_chunks::<SUMS>();
    let mut sums = [0.0; SUMS];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, _), (b, _)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    let mut sums = [0.0; SUMS];
    for (a, b) in a.iter().zip(b) {
        for ((sum, x), y) in sums.iter_mut().zip(a).zip(b) {
            *sum += x * y;
        }
    }
    sums.iter().sum()
}

/// The exponential of a number that is not positive, to five digits: a power of two from the bits of
/// the exponent, times a polynomial. Unlike the library's it is computed in vectors.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let power = (x * std::f32::consts::LOG2_E).max(-126.0);
    let whole = power.floor();
    let part = power - whole;
    // 2^part on [0, 1), by the coefficients of a minimax polynomial.
    let fraction = ((((0.001_877_576_7 * part + 0.008_989_34) * part + 0.055_826_318) * part
        + 0.240_153_61)
        * part
        + 0.693_153_1)
        * part
        + 0.999_999_94;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to 127"
    )]
    let exponent = (whole as i32 + 127) as u32;
    fraction * f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_matches_reference_values() {
        for (x, want) in [
            (0.0, 0.0),
            (1.0, 0.841_345),
            (-1.0, -0.158_655),
            (3.0, 2.995_95),
            (-0.5, -0.154_269),
            (-40.0, 0.0),
        ] {
            let mut numbers = [x];
            Gelu(&mut numbers).call();
            assert!((numbers[0] - want).abs() < 1e-5, "{x}: {numbers:?}");
        }
    }

    #[test]
    fn exponentials_are_right_to_five_digits() {
        let mut x = 0.0_f32;
        while x > -80.0 {
            let (got, want) = (exp(x), x.exp());
            assert!((got / want - 1.0).abs() < 8e-6, "{x}: {got} {want}");
            x -= 0.0137;
        }
        assert!(exp(-1000.0) < 1e-37);
    }

    #[test]
    fn normalised_rows_have_mean_zero_and_variance_one() {
        let mut row: Vec<f32> = (0_i16..48).map(f32::from).collect();
        let normalize = NormalizeRows {
            rows: &mut row,
            weight: &[1.0; 48],
            bias: &[0.0; 48],
            epsilon: 1e-12,
        };
        normalize.call();
        assert!(sum(&row).abs() < 1e-3 && (dot(&row, &row) / 48.0 - 1.0).abs() < 1e-4);
    }
}
