//! Compiles the contract without `protoc`, and keeps its descriptors for reflection.

use std::path::PathBuf;

use prost::Message;

fn main() -> anyhow::Result<()> {
    let root = "../../proto";
    println!("cargo:rerun-if-changed={root}");
    let descriptors = protox::compile(["pitwheel/v1/pitwheel.proto"], [root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(tonic_prost_build::configure().compile_fds(descriptors)?)
}
