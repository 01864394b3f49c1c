//! The gRPC contract (`proto/pitwheel/v1`), as Rust types. Its documentation is in the proto file.

/// The metadata of a status with the stable code of the error, if a Pitwheel server answers it.
pub const ERROR_CODE_HEADER: &str = "pitwheel-error";

/// Version 1.
pub mod v1 {
    #![allow(missing_docs, clippy::too_many_lines, unreachable_pub)]

    tonic::include_proto!("pitwheel.v1");

    /// The contract's descriptors, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
