//! The gRPC contract (`proto/pitwheel/v1`), as Rust types. Its documentation is in the proto file.

/// Version 1.
pub mod v1 {
    #![allow(missing_docs, clippy::too_many_lines, unreachable_pub)]

    tonic::include_proto!("pitwheel.v1");

    /// The contract's descriptors, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
