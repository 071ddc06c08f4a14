//! The vectors of a machine: how many products one step computes, and how they are summed.
#![allow(
    clippy::inline_always,
    reason = "only inlined functions are compiled for the vectors of the machine"
)]

/// The vectors of a machine.
pub(crate) trait Lanes: Copy {
    /// Weights or activations, as 16-bit numbers.
    type Numbers: Copy;
    /// Partial sums.
    type Sums: Copy;
    /// How many products one step computes; it divides `ROW_UNIT`.
    const WIDTH: usize;
    fn zero_numbers(self) -> Self::Numbers;
    fn zero(self) -> Self::Sums;
    fn load_weights(self, weights: &[i8]) -> Self::Numbers;
    fn load_token(self, token: &[i16]) -> Self::Numbers;
    fn add_products(self, sums: Self::Sums, a: Self::Numbers, b: Self::Numbers) -> Self::Sums;
    fn total(self, sums: Self::Sums) -> i32;
}

/// The loop for machines without known vectors; the compiler may use those of the target.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type Numbers = [i16; 8];
    type Sums = [i32; 8];
    const WIDTH: usize = 8;

    #[inline(always)]
    fn zero_numbers(self) -> Self::Numbers {
        [0; 8]
    }

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0; 8]
    }

    #[inline(always)]
    fn load_weights(self, weights: &[i8]) -> Self::Numbers {
        weights.first_chunk().map_or([0; 8], |w| w.map(i16::from))
    }

    #[inline(always)]
    fn load_token(self, token: &[i16]) -> Self::Numbers {
        token.first_chunk().copied().unwrap_or_default()
    }

    #[inline(always)]
    fn add_products(self, mut sums: Self::Sums, a: Self::Numbers, b: Self::Numbers) -> Self::Sums {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += i32::from(a) * i32::from(b);
        }
        sums
    }

    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        sums.iter().sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256i, __m512i};

    use pulp::x86::{V3, V4};

    use super::Lanes;

    #[inline(always)]
    fn load<T: pulp::bytemuck::Pod, const N: usize>(numbers: &[T]) -> [T; N] {
        numbers.first_chunk().copied().unwrap_or([T::zeroed(); N])
    }

    impl Lanes for V3 {
        type Numbers = __m256i;
        type Sums = __m256i;
        const WIDTH: usize = 16;

        #[inline(always)]
        fn zero_numbers(self) -> __m256i {
            self.avx._mm256_setzero_si256()
        }

        #[inline(always)]
        fn zero(self) -> __m256i {
            self.avx._mm256_setzero_si256()
        }

        #[inline(always)]
        fn load_weights(self, weights: &[i8]) -> __m256i {
            let weights = pulp::cast(load::<i8, 16>(weights));
            self.avx2._mm256_cvtepi8_epi16(weights)
        }

        #[inline(always)]
        fn load_token(self, token: &[i16]) -> __m256i {
            pulp::cast(load::<i16, 16>(token))
        }

        #[inline(always)]
        fn add_products(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
            let products = self.avx2._mm256_madd_epi16(a, b);
            self.avx2._mm256_add_epi32(sums, products)
        }

        #[inline(always)]
        fn total(self, sums: __m256i) -> i32 {
            pulp::cast::<__m256i, [i32; 8]>(sums).iter().sum()
        }
    }

    impl Lanes for V4 {
        type Numbers = __m512i;
        type Sums = __m512i;
        const WIDTH: usize = 32;

        #[inline(always)]
        fn zero_numbers(self) -> __m512i {
            self.avx512f._mm512_setzero_si512()
        }

        #[inline(always)]
        fn zero(self) -> __m512i {
            self.avx512f._mm512_setzero_si512()
        }

        #[inline(always)]
        fn load_weights(self, weights: &[i8]) -> __m512i {
            let weights = pulp::cast(load::<i8, 32>(weights));
            self.avx512bw._mm512_cvtepi8_epi16(weights)
        }

        #[inline(always)]
        fn load_token(self, token: &[i16]) -> __m512i {
            pulp::cast(load::<i16, 32>(token))
        }

        #[inline(always)]
        fn add_products(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
            let products = self.avx512bw._mm512_madd_epi16(a, b);
            self.avx512f._mm512_add_epi32(sums, products)
        }

        #[inline(always)]
        fn total(self, sums: __m512i) -> i32 {
            pulp::cast::<__m512i, [i32; 16]>(sums).iter().sum()
        }
    }
}
