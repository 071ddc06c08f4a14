//! Weights of a model: reads published files, rounds them to eight bits, and reads the result.
//!
//! Both are in the safetensors format. A rounded matrix is one tensor of bytes and one of scales.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorView},
};

use crate::{Error, Result, matrix::QuantizedMatrix};

/// The most bytes of the header, which lists the tensors and their offsets.
const MAX_HEADER_BYTES: u64 = 1024 * 1024;
/// Follows the name of a matrix in the name of its scales.
const SCALES: &str = ".scales";

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

    /// Reads numbers of this shape.
    pub(crate) fn read_floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let bytes = self.read_bytes(name, Dtype::F32, shape)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    /// Reads a matrix, which may be rounded already.
    pub(crate) fn read_matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<QuantizedMatrix> {
        let scales = format!("{name}{SCALES}");
        let matrix = if self.tensors.info(&scales).is_some() {
            let values = self.read_bytes(name, Dtype::I8, &[rows, columns])?;
            let values = values.into_iter().map(u8::cast_signed).collect();
            QuantizedMatrix::from_parts(columns, values, self.read_floats(&scales, &[rows])?)
        } else {
            QuantizedMatrix::quantize(columns, &self.read_floats(name, &[rows, columns])?)
        };
        matrix.ok_or_else(|| self.format_error(format!("{name} has {rows} × {columns} numbers")))
    }

    fn read_bytes(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>> {
        let tensor = self.tensors.info(name);
        let tensor = tensor.ok_or_else(|| self.format_error(format!("there is no {name}")))?;
        if tensor.dtype != dtype || tensor.shape != shape {
            let (found, found_shape) = (tensor.dtype, &tensor.shape);
            return Err(self.format_error(format!(
                "{name} is {found:?} {found_shape:?}, not {dtype:?} {shape:?}"
            )));
        }
        let (from, to) = tensor.data_offsets;
        let mut bytes = vec![0; to.saturating_sub(from)];
        let from = SeekFrom::Start(self.start.saturating_add(from as u64));
        let read = self.file.seek(from);
        read.and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        Ok(bytes)
    }

    fn format_error(&self, reason: String) -> Error {
        Error::Format {
            path: self.path.clone(),
            reason,
        }
    }
}

/// Collects rounded weights and writes them to a file.
#[derive(Debug, Default)]
pub(crate) struct WeightsWriter {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl WeightsWriter {
    pub(crate) fn add_floats(&mut self, name: &str, shape: &[usize], numbers: &[f32]) {
        let bytes = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let tensor = (Dtype::F32, shape.to_vec(), bytes);
        self.tensors.insert(name.to_owned(), tensor);
    }

    pub(crate) fn add_matrix(&mut self, name: &str, columns: usize, matrix: &QuantizedMatrix) {
        let scales = matrix.scales();
        self.add_floats(&format!("{name}{SCALES}"), &[scales.len()], scales);
        let bytes = matrix.values().iter().map(|value| value.cast_unsigned());
        let tensor = (Dtype::I8, vec![scales.len(), columns], bytes.collect());
        self.tensors.insert(name.to_owned(), tensor);
    }

    pub(crate) fn write_to(&self, path: &Path) -> Result<()> {
        let wrong = |reason: String| Error::Format {
            path: path.to_owned(),
            reason,
        };
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?))
        });
        let views: std::result::Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        let bytes = views
            .and_then(|views| safetensors::serialize(views, None))
            .map_err(|error| wrong(error.to_string()))?;
        std::fs::write(path, bytes).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })
    }
}
