//! Reads single tensors from the weights file, which is in the safetensors format.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use ndarray::{Array1, Array2};
use safetensors::{Dtype, tensor::Metadata};

use crate::{Error, Result};

/// The most bytes of the header, which lists the tensors and their offsets.
const MAX_HEADER_BYTES: u64 = 1024 * 1024;

/// An open weights file.
#[derive(Debug)]
pub(crate) struct WeightsReader {
    path: PathBuf,
    file: File,
    tensors: Metadata,
    /// File offset of the tensor data.
    start: u64,
}

impl WeightsReader {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        let wrong = |reason: String| Error::Format {
            path: path.to_owned(),
            reason,
        };
        let mut file = File::open(path).map_err(io)?;
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(io)?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER_BYTES {
            return Err(wrong(format!("its header has {size} bytes")));
        }
        let mut header = String::new();
        (&file).take(size).read_to_string(&mut header).map_err(io)?;
        // Parsing also checks that the tensors lie side by side and have the size of their shape.
        let tensors: Metadata =
            serde_json::from_str(&header).map_err(|error| wrong(error.to_string()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            tensors,
            start: 8 + size,
        })
    }

    pub(crate) fn read_vector(&mut self, name: &str, length: usize) -> Result<Array1<f32>> {
        Ok(Array1::from_vec(self.read_floats(name, &[length])?))
    }

    pub(crate) fn read_matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Array2<f32>> {
        let floats = self.read_floats(name, &[rows, columns])?;
        Array2::from_shape_vec((rows, columns), floats)
            .map_err(|error| self.format_error(format!("{name}: {error}")))
    }

    fn read_floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.tensors.info(name);
        let tensor = tensor.ok_or_else(|| self.format_error(format!("there is no {name}")))?;
        if tensor.dtype != Dtype::F32 || tensor.shape != shape {
            let (dtype, found) = (tensor.dtype, &tensor.shape);
            return Err(
                self.format_error(format!("{name} is {dtype:?} {found:?}, not F32 {shape:?}"))
            );
        }
        let count: usize = shape.iter().product();
        let from = tensor.data_offsets.0 as u64;
        let mut bytes = vec![0; count * 4];
        let from = SeekFrom::Start(self.start.saturating_add(from));
        let read = self.file.seek(from);
        read.and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    fn format_error(&self, reason: String) -> Error {
        Error::Format {
            path: self.path.clone(),
            reason,
        }
    }
}
