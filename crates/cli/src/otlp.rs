//! Sends spans to an OpenTelemetry collector.

use anyhow::Context as _;
use opentelemetry::global;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::exit::CommandError;

/// Sends the spans of this process to a collector. When dropped, it sends the remaining ones.
pub(crate) struct Otlp {
    provider: SdkTracerProvider,
}

impl Otlp {
    /// Does not connect yet. While the collector cannot be reached, spans are lost and nothing else happens.
    pub(crate) fn start(endpoint: &str) -> anyhow::Result<Otlp> {
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(CommandError::usage(format!(
                "`{endpoint}` is not the URL of a collector: use http://host:4317"
            ))
            .into());
        }
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.with_context(|| format!("cannot send spans to {endpoint}"))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder().with_service_name("pitwheel").build())
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Otlp { provider })
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}
