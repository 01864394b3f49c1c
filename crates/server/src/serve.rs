//! Building and running a server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use pitwheel::Pitwheel;
use pitwheel_proto::v1;
use pitwheel_proto::v1::job_service_server::JobServiceServer;
use pitwheel_proto::v1::pipeline_service_server::PipelineServiceServer;
use pitwheel_proto::v1::recurring_service_server::RecurringServiceServer;
use pitwheel_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};
use utoipa_axum::router::OpenApiRouter;

use crate::auth::middleware::{Authentication, authenticate, check_again};
use crate::auth::tokens::Tokens;
use crate::background::{Background, Tasks};
use crate::dispatch::node::Node;
use crate::error::Error;
use crate::grpc::job_service::Jobs;
use crate::grpc::pipeline_service::PipelineCalls;
use crate::grpc::recurring_service::Recurring;
use crate::grpc::worker_service::Workers;
use crate::http::recover::StaleAfter;
use crate::http::router::{Api, not_found, probe_routes, router};
use crate::limits;
use crate::listen::answers::{Answers, hold_answer, hold_refusal};
use crate::listen::bodies::{Bodies, read_body};
use crate::listen::calls::{Calls, limit_calls};
use crate::listen::connections::incoming;
use crate::listen::probes::limit_probes;
use crate::listen::reflection::{REFLECTION_BYTES_MAX, Reflections, limit_reflection};
use crate::listen::requests::{hold_call, note_request};
use crate::listen::tls::Tls;
use crate::observe::database_check::{DatabaseCheck, PROBE_MAX};
use crate::observe::health;
use crate::observe::metrics::{self, Metrics};
use crate::observe::traces;
use crate::observe::watch::{self, Watch};
use crate::options::Options;
use crate::readiness::Readiness;

/// A connection whose peer does not answer is closed after this long and half as long again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a server that stops waits for its connections to close: longer than [`KEEPALIVE`] needs to find a dead peer. A
/// client that connected and never sent anything is not found by it.
const SHUTDOWN_MAX: Duration = Duration::from_secs(16);
/// Streams and calls at a time on one connection.
const CALLS_MAX: u32 = 2000;
/// A connection is closed after so many streams that had to be reset because of an error of its client, which is hyper's own limit. A
/// reset stream does not count as a call, but takes memory until the client reads that it was reset.
const RESETS_MAX: usize = 1024;

/// Connections for the gauges of a scrape, which must not wait for callers of the API. Readiness has another one.
const SCRAPE_CONNECTIONS: usize = 2;
/// How long a read of the tokens may take. Calls wait for it.
const TOKENS_READ_MAX: Duration = Duration::from_secs(2);

/// A server, to be run in a program of its own or beside other work.
///
/// A program can add routes of its own. They are served beside the API of Pitwheel, at the paths that they name, and behind
/// the same tokens. Their operations stand in the same document, `/api/openapi.json`. A handler learns who calls from
/// [`Caller`](crate::Caller) and returns [`Problem`](crate::Problem) for the errors that Pitwheel has too.
///
/// ```no_run
/// use axum::Json;
/// use axum::extract::State;
/// use pitwheel::{NewJob, Pitwheel, Role};
/// use pitwheel_server::{Caller, ErrorResponses, Problem, Readiness, Server};
/// use utoipa_axum::router::OpenApiRouter;
/// use utoipa_axum::routes;
///
/// /// Sends an invoice again. Returns the id of the job that does it.
/// #[utoipa::path(post, path = "/invoices/send", responses((status = 200, body = i64), ErrorResponses))]
/// async fn send_invoice(State(pitwheel): State<Pitwheel>, caller: Caller) -> Result<Json<i64>, Problem> {
///     caller.require(Role::Operator)?;
///     let job = pitwheel.enqueue(NewJob::raw("send_invoice", "{}")).await?;
///     Ok(Json(job.id))
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pitwheel = Pitwheel::connect("postgres://localhost/app").await?;
/// let readiness = Readiness::starting();
/// let server = Server::new(&pitwheel)
///     .routes(OpenApiRouter::new().routes(routes!(send_invoice)).with_state(pitwheel.clone()))
///     .readiness(&readiness);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:7475").await?;
/// let running = tokio::spawn(server.run(listener, async {
///     let _ = tokio::signal::ctrl_c().await;
/// }));
/// readiness.accepting().await?;
/// // Load what the routes need; then load balancers may send traffic.
/// readiness.set_ready();
/// running.await??;
/// # Ok(())
/// # }
/// ```
#[must_use = "a server does nothing until it is run"]
pub struct Server {
    pitwheel: Pitwheel,
    options: Options,
    routes: Vec<OpenApiRouter>,
    public_prefixes: Vec<String>,
    streamed_prefixes: Vec<String>,
    readiness: Readiness,
    only_probes: bool,
}

impl Server {
    /// A server for this database, with default options, no routes of its own, and ready as soon as it serves.
    pub fn new(pitwheel: &Pitwheel) -> Server {
        Server {
            pitwheel: pitwheel.clone(),
            options: Options::default(),
            routes: Vec::new(),
            public_prefixes: Vec::new(),
            streamed_prefixes: Vec::new(),
            readiness: Readiness::default(),
            only_probes: false,
        }
    }

    /// Sets the options.
    pub fn options(mut self, options: Options) -> Server {
        self.options = options;
        self
    }

    /// Adds routes; may be called several times. The paths must not be those of the server (`/api/v1/...`,
    /// `/api/openapi.json`, `/metrics`, `/healthz`, `/readyz`) or of other added routes: [`Server::run`] fails otherwise.
    /// Every route needs authentication, unless [`Server::public`] exempts it. A fallback of the router is not used. The program must use the versions of axum,
    /// utoipa and utoipa-axum that this crate uses.
    ///
    /// A handler under `/api/v1/` whose body is not [streamed](Server::streamed) runs to its end also when its caller gives up.
    pub fn routes(mut self, routes: OpenApiRouter) -> Server {
        self.routes.push(routes);
        self
    }

    /// Exempts the added routes whose paths begin with `prefix` from authentication, for callers that cannot have a token, such as
    /// the webhooks of another service. Their handlers get no [`Caller`](crate::Caller) and must check the request themselves. The
    /// prefix begins and ends with `/` and names no path of the server: [`Server::run`] fails otherwise.
    pub fn public(mut self, prefix: impl Into<String>) -> Server {
        self.public_prefixes.push(prefix.into());
        self
    }

    /// Leaves the bodies of requests whose paths begin with `prefix` to the handlers of the added routes, which read them as they
    /// arrive. Other bodies under `/api/v1/` are read before their handler runs, up to 4 MiB and 10 seconds. Such a handler limits
    /// the bytes and the time itself.
    pub fn streamed(mut self, prefix: impl Into<String>) -> Server {
        self.streamed_prefixes.push(prefix.into());
        self
    }

    /// Sets the handle with which the application reports that it is ready. Without one, `/readyz` depends on the
    /// database only.
    pub fn readiness(mut self, readiness: &Readiness) -> Server {
        self.readiness = readiness.clone();
        self
    }

    /// Serves `/metrics`, `/healthz` and `/readyz` and nothing else: for a process without an API, such as a relay. Added routes are not
    /// served.
    pub fn only_probes(mut self) -> Server {
        self.only_probes = true;
        self
    }

    /// Serves until `shutdown` ends. Then streams are ended, jobs that were claimed but not sent are released, and calls
    /// under way are answered. `shutdown` is first polled when the server accepts connections.
    ///
    /// Not safe to cancel: a future that is dropped leaves jobs to the sweep that were claimed and not sent.
    ///
    /// # Errors
    /// When the server cannot start: the schema does not fit this version, the address can be reached from other machines
    /// and no token exists, a certificate cannot be used, or routes clash.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let Server {
            pitwheel,
            mut options,
            routes,
            public_prefixes,
            streamed_prefixes,
            readiness,
            only_probes,
        } = self;
        let _ended = readiness.end_on_drop();
        options.serve_workers &= !only_probes;
        check_public(&public_prefixes)?;
        let http = router(routes)?;
        let reflection = reflection()?;
        let tls = options.tls.as_ref().map(Tls::acceptor).transpose()?;
        pitwheel.check_schema().await?;
        let authentication = authentication(&pitwheel, &listener, &options, public_prefixes).await?;
        if options.traces {
            traces::enable();
        }
        let node = Node::start(&pitwheel, &options, authentication.tokens.clone())?;
        if !only_probes {
            node.prepare_history().await;
        }
        let watch = Arc::new(Watch::default());
        let background = Background::default();
        let tasks = background.tasks();
        tasks.spawn(watch::run(watch.clone(), pitwheel.clone()));
        let (tokens, watched) = (authentication.tokens.clone(), watch.clone());
        tasks.spawn(async move {
            tokens.close_streams(|| watched.tokens(), |invalid| watched.close_tokens(invalid)).await;
        });
        tasks.spawn(metrics::run_upkeep());
        let scrapes = pitwheel.for_probes(SCRAPE_CONNECTIONS, PROBE_MAX)?;
        let api = Api {
            metrics: Arc::new(Metrics::new(scrapes, node.pool.clone())?),
            node: node.clone(),
            watch: watch.clone(),
            readiness: readiness.clone(),
            database: Arc::new(DatabaseCheck::new(pitwheel.for_probes(1, PROBE_MAX)?)),
            stale_after: StaleAfter(options.stale_after),
            pitwheel,
        };
        let routes = match only_probes {
            true => probe_routes().with_state(api),
            false => grpc(&api, reflection).merge(http.with_state(api)).fallback(not_found),
        };
        let routes = layered(routes, streamed_prefixes, authentication, tasks);
        let stopping = Notify::new();
        let shutdown = async {
            readiness.set_accepting();
            shutdown.await;
            // First the streams, so that workers look for another node; calls under way are still answered.
            node.stop();
            watch.close();
            stopping.notify_one();
        };
        let serving = http2()
            .accept_http1(true)
            .add_routes(Routes::from(routes))
            .serve_with_incoming_shutdown(incoming(listener, tls, tasks.tracker()), shutdown);
        tokio::select! {
            served = serving => served?,
            () = timeout(&stopping) => tracing::warn!("stopping although clients are still connected"),
        }
        node.finish().await;
        background.end().await;
        Ok(())
    }
}

/// A server whose connections have limits.
fn http2() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE / 2))
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        // Without this, tonic switches the limit off.
        .http2_max_local_error_reset_streams(Some(RESETS_MAX))
}

/// Ends when the clients have had long enough to leave.
async fn timeout(stopping: &Notify) {
    stopping.notified().await;
    tokio::time::sleep(SHUTDOWN_MAX).await;
}

/// How callers are authenticated on this listener. An address that other machines can reach needs a token.
async fn authentication(
    pitwheel: &Pitwheel,
    listener: &TcpListener,
    options: &Options,
    public_prefixes: Vec<String>,
) -> Result<Arc<Authentication>, Error> {
    let address = listener.local_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    let is_open = !address.ip().is_loopback();
    let tokens = Arc::new(Tokens::new(pitwheel.pool_for_loops(1, TOKENS_READ_MAX)?));
    if is_open && !tokens.exist().await? {
        return Err(Error::Open(address));
    }
    if is_open && options.tls.is_none() {
        tracing::warn!(
            "tokens and payloads travel in the clear: configure TLS, or put a proxy with TLS in front of this server"
        );
    }
    Ok(Arc::new(Authentication { tokens, required: is_open || options.require_tokens, public_prefixes }))
}

/// Refuses prefixes that would exempt paths of the server.
fn check_public(prefixes: &[String]) -> Result<(), Error> {
    let is_of_server = |prefix: &str| prefix.starts_with("/api/") || prefix.starts_with("/pitwheel.v1.");
    let is_whole = |prefix: &str| prefix.len() > 2 && prefix.starts_with('/') && prefix.ends_with('/');
    match prefixes.iter().find(|prefix| !is_whole(prefix) || is_of_server(prefix)) {
        Some(prefix) => Err(Error::Routes(format!(
            "`{prefix}` cannot be public: choose a prefix of your own that begins and ends with `/`"
        ))),
        None => Ok(()),
    }
}

/// The routes behind authentication. The layer that is added last runs first: the body of a call is read before the call takes one of
/// the places of its token, and it keeps that place until there is room for its answer. Whatever it has waited for, its token is valid
/// when its handler runs.
fn layered(
    routes: Router,
    streamed_prefixes: Vec<String>,
    authentication: Arc<Authentication>,
    tasks: &Tasks,
) -> Router {
    let calls = Calls::new(streamed_prefixes.clone(), tasks.clone());
    let bodies = Bodies::new(streamed_prefixes);
    routes
        .layer(from_fn_with_state(authentication.clone(), check_again))
        .layer(from_fn_with_state(Arc::<Answers>::default(), hold_answer))
        .layer(from_fn_with_state(Arc::new(calls), limit_calls))
        .layer(from_fn_with_state(Arc::new(bodies), read_body))
        .layer(from_fn_with_state(Arc::<Reflections>::default(), limit_reflection))
        .layer(from_fn(hold_call))
        .layer(from_fn(limit_probes))
        .layer(from_fn_with_state(authentication, authenticate))
        .layer(from_fn(hold_refusal))
        .layer(from_fn(note_request))
}

/// The gRPC services, with health checks, and `reflection`, which describes them.
fn grpc(api: &Api, reflection: ServerReflectionServer<impl ServerReflection>) -> Router {
    let services = [
        WorkerServiceServer::<Workers>::NAME,
        JobServiceServer::<Jobs>::NAME,
        RecurringServiceServer::<Recurring>::NAME,
        PipelineServiceServer::<PipelineCalls>::NAME,
    ];
    let workers = WorkerServiceServer::new(Workers::new(api.node.clone()));
    let jobs = JobServiceServer::new(Jobs::new(api.pitwheel.clone()));
    let recurring = RecurringServiceServer::new(Recurring::new(api.pitwheel.clone()));
    let pipelines = PipelineServiceServer::new(PipelineCalls::new(api.pitwheel.clone()));
    let routes = Routes::new(health::service(&services))
        .add_service(workers.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(jobs.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(recurring.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(pipelines.max_decoding_message_size(limits::MESSAGE_BYTES_MAX))
        .add_service(reflection.max_decoding_message_size(REFLECTION_BYTES_MAX));
    routes.into_axum_router().reset_fallback()
}

/// The service that describes the gRPC services to tools.
fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, Error> {
    let service = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    service.map_err(|error| pitwheel::Error::Invalid(error.to_string()).into())
}
