//! Routes that an application adds to the server, and when it is ready.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use futures_util::StreamExt;
use pitwheel::Role;
use pitwheel_server::{Caller, Error, ErrorResponses, NotServing, Options, Problem, Readiness, Server};
use pitwheel_testkit::{Http, TestDb, WAIT_MAX};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// An invoice.
#[derive(Serialize, ToSchema)]
struct Invoice {
    number: u32,
    /// Who asked for it.
    caller: String,
    role: &'static str,
}

/// Shows an invoice.
#[utoipa::path(get, path = "/invoices/{number}", params(("number" = u32, Path)),
    responses((status = 200, body = Invoice), ErrorResponses))]
async fn show_invoice(State(number): State<u32>, caller: Caller) -> Json<Invoice> {
    Json(Invoice { number, caller: caller.name().to_owned(), role: caller.role().as_str() })
}

/// Cancels all invoices.
#[utoipa::path(post, path = "/invoices/cancel", responses((status = 200, body = bool), ErrorResponses))]
async fn cancel_invoices(caller: Caller) -> Result<Json<bool>, Problem> {
    caller.require(Role::Operator)?;
    Ok(Json(true))
}

/// Counts the bytes of a body.
#[utoipa::path(post, path = "/hooks/upload", responses((status = 200, body = usize), ErrorResponses))]
async fn count_bytes(body: Body) -> Result<Json<usize>, Problem> {
    let mut chunks = body.into_data_stream();
    let mut bytes = 0;
    while let Some(chunk) = chunks.next().await {
        bytes += chunk.map_err(|error| Problem::invalid(error.to_string()))?.len();
    }
    Ok(Json(bytes))
}

fn invoices() -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(show_invoice)).routes(routes!(cancel_invoices)).with_state(7)
}

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    /// Returns when the server accepts connections.
    async fn start(server: Server, readiness: &Readiness) -> Result<Running> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.readiness(readiness).run(listener, async {
            let _ = stopped.await;
        }));
        readiness.accepting().await?;
        Ok(Running { address, stop, task })
    }

    async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}

fn with_tokens() -> Options {
    let mut options = Options::default();
    options.require_tokens = true;
    options
}

async fn secret(db: &TestDb, role: Role) -> Result<String> {
    Ok(db.pitwheel().create_token(role.as_str(), role, None).await?.1)
}

#[tokio::test]
async fn an_added_route_needs_the_same_token() -> Result<()> {
    let db = TestDb::new().await?;
    let server = Server::new(db.pitwheel()).options(with_tokens()).routes(invoices());
    let server = Running::start(server, &Readiness::default()).await?;
    let http = Http::new(server.address);
    for path in ["/invoices/7", "/api/v1/jobs"] {
        let refused = http.get(path).await?;
        assert_eq!((refused.status, &refused.json()?["title"]), (401, &json!("unauthenticated")), "{path}");
        assert_eq!(http.token("pitwheel_0000").get(path).await?.status, 401, "{path}");
    }
    let shown = http.token(&secret(&db, Role::Viewer).await?).get("/invoices/7").await?;
    assert_eq!(shown.status, 200, "{}", shown.text);
    assert_eq!(shown.json()?, json!({ "number": 7, "caller": "token viewer", "role": "viewer" }));
    server.stop().await
}

#[tokio::test]
async fn an_added_route_refuses_a_role_as_the_server_does() -> Result<()> {
    let db = TestDb::new().await?;
    let server = Server::new(db.pitwheel()).options(with_tokens()).routes(invoices());
    let server = Running::start(server, &Readiness::default()).await?;
    let http = Http::new(server.address);
    let viewer = http.token(&secret(&db, Role::Viewer).await?);
    let problem = async |path: &str| -> Result<Value> {
        let mut problem = viewer.post(path, &Value::Null).await?.json()?;
        problem.as_object_mut().context("no object")?.remove("detail");
        Ok(problem)
    };
    let refused = problem("/invoices/cancel").await?;
    assert_eq!(
        refused,
        json!({ "type": "urn:pitwheel:error:forbidden", "title": "forbidden", "status": 403 })
    );
    assert_eq!(refused, problem("/api/v1/queues/default/pause").await?);
    for (role, status) in
        [(Role::Operator, 200), (Role::Admin, 200), (Role::Producer, 403), (Role::Worker, 403)]
    {
        let caller = http.token(&secret(&db, role).await?);
        assert_eq!(caller.post("/invoices/cancel", &Value::Null).await?.status, status, "{}", role.as_str());
    }
    server.stop().await
}

/// Called by another service, which has no token.
#[utoipa::path(post, path = "/hooks/paid", responses((status = 200, body = bool)))]
async fn take_hook() -> Json<bool> {
    Json(true)
}

#[tokio::test]
async fn a_public_prefix_exempts_its_paths_and_no_others() -> Result<()> {
    let db = TestDb::new().await?;
    let routes = || invoices().routes(routes!(take_hook));
    let server = Server::new(db.pitwheel()).options(with_tokens()).routes(routes()).public("/hooks/");
    let server = Running::start(server, &Readiness::default()).await?;
    let hub = Http::new(server.address).header("origin", "https://other.example").header("via", "1.1 proxy");
    assert_eq!(hub.post("/hooks/paid", &Value::Null).await?.status, 200);
    for path in ["/invoices/cancel", "/hooks", "/hooksx/paid", "/api/v1/queues/default/pause"] {
        assert_eq!(hub.post(path, &Value::Null).await?.status, 401, "{path}");
    }
    assert_eq!(hub.get("/hooks/../api/v1/jobs").await?.status, 404, "a path is not resolved");
    server.stop().await?;

    for prefix in ["/", "", "/api/", "/api/v1/", "hooks/", "/hooks"] {
        let server = Server::new(db.pitwheel()).routes(routes()).public(prefix);
        let refused = server.run(TcpListener::bind("127.0.0.1:0").await?, std::future::pending()).await;
        assert!(matches!(refused, Err(Error::Routes(_))), "{prefix}");
    }
    Ok(())
}

#[tokio::test]
async fn an_added_route_stands_in_the_document() -> Result<()> {
    let db = TestDb::new().await?;
    let server = Running::start(Server::new(db.pitwheel()).routes(invoices()), &Readiness::default()).await?;
    let http = Http::new(server.address);
    let document = http.get("/api/openapi.json").await?.json()?;
    let (added, own) = (&document["paths"]["/invoices/{number}"], &document["paths"]["/jobs"]);
    assert_eq!(added["get"]["operationId"], "show_invoice");
    assert_eq!(added["servers"], json!([{ "url": "/" }]), "it is not served below /api/v1");
    assert!(added["get"]["responses"]["403"].is_object(), "{added}");
    assert!(own["get"].is_object() && own["servers"].is_null(), "{own}");
    assert_eq!(document["servers"], json!([{ "url": "/api/v1" }]));
    assert!(document["components"]["schemas"]["Invoice"].is_object());
    let wrong = http.post("/invoices/7", &Value::Null).await?;
    assert_eq!((wrong.status, &wrong.json()?["title"]), (405, &json!("invalid")));
    server.stop().await
}

#[tokio::test]
async fn a_server_is_ready_when_the_application_says_so() -> Result<()> {
    let db = TestDb::new().await?;
    let readiness = Readiness::starting();
    let server = Running::start(Server::new(db.pitwheel()).routes(invoices()), &readiness).await?;
    let http = Http::new(server.address);
    assert_eq!(http.get("/readyz").await?.status, 503);
    assert_eq!(http.get("/healthz").await?.status, 200);
    assert_eq!(http.get("/invoices/7").await?.status, 200, "routes are served before");
    readiness.set_ready();
    assert_eq!(http.get("/readyz").await?.status, 200);
    readiness.set_not_ready("the price list is loading");
    let refused = http.get("/readyz").await?;
    assert_eq!((refused.status, &refused.json()?["reason"]), (503, &json!("the price list is loading")));
    server.stop().await?;
    assert_eq!(readiness.accepting().await, Err(NotServing), "it has ended");
    Ok(())
}

/// The path of the API with another name for its parameter.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", params(("job" = i64, Path)), responses((status = 200)))]
async fn another_job() {}

#[utoipa::path(get, path = "/metrics", responses((status = 200)))]
async fn another_metrics() {}

/// Not the path of the API, but the same name in the document.
#[utoipa::path(get, path = "/jobs", responses((status = 200)))]
async fn another_name() {}

mod other {
    use super::{Json, Serialize, ToSchema};

    /// A queue in front of a counter, and not one of jobs.
    #[derive(Serialize, ToSchema)]
    pub(super) struct Queue {
        people: u32,
    }

    #[utoipa::path(get, path = "/counters", responses((status = 200, body = Queue)))]
    pub(super) async fn show_counter() -> Json<Queue> {
        Json(Queue { people: 3 })
    }
}

#[tokio::test]
async fn a_clash_is_an_error_at_the_start() -> Result<()> {
    let db = TestDb::new().await?;
    let clashes: [(&str, &str, Vec<OpenApiRouter>); 6] = [
        (
            "a parameter of another name",
            "/api/v1/jobs/{id}",
            vec![OpenApiRouter::new().routes(routes!(another_job))],
        ),
        (
            "a path outside of the API",
            "`/metrics`",
            vec![OpenApiRouter::new().routes(routes!(another_metrics))],
        ),
        ("a name in the document", "`/jobs`", vec![OpenApiRouter::new().routes(routes!(another_name))]),
        ("a schema", "`Queue`", vec![OpenApiRouter::new().routes(routes!(other::show_counter))]),
        (
            "a route without a description",
            "/healthz",
            vec![OpenApiRouter::new().route("/healthz", get(|| async {}))],
        ),
        ("two added routes", "`/invoices/cancel`", vec![invoices(), invoices()]),
    ];
    for (what, named, routers) in clashes {
        let readiness = Readiness::default();
        let server = routers.into_iter().fold(Server::new(db.pitwheel()), Server::routes);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let refused = server.readiness(&readiness).run(listener, std::future::pending()).await;
        let Err(Error::Routes(message)) = refused else { anyhow::bail!("{what}: {refused:?}") };
        assert!(message.contains(named), "{what}: {message}");
        assert_eq!(readiness.accepting().await, Err(NotServing), "{what}");
    }
    Ok(())
}

/// By hand, so that the head of a request comes with the end of the body before it.
#[tokio::test]
async fn large_bodies_without_a_token_are_read_over_one_connection_of_http1() -> Result<()> {
    const BYTES: usize = 10 * 1024 * 1024;
    let db = TestDb::new().await?;
    let routes = OpenApiRouter::new().routes(routes!(count_bytes));
    let server = Server::new(db.pitwheel()).options(with_tokens()).routes(routes).public("/hooks/");
    let server = Running::start(server, &Readiness::default()).await?;
    let (mut answers, mut requests) = TcpStream::connect(server.address).await?.into_split();
    let head = format!("POST /hooks/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BYTES}\r\n\r\n");
    let request = [head.as_bytes(), &vec![b'x'; BYTES]].concat();
    let sending =
        tokio::spawn(async move { requests.write_all(&request.repeat(3)).await.map(|()| requests) });
    let mut text = Vec::new();
    while String::from_utf8_lossy(&text).matches(&BYTES.to_string()).count() < 3 {
        let read = timeout(WAIT_MAX, answers.read_buf(&mut text)).await??;
        anyhow::ensure!(read > 0, "closed after {}", String::from_utf8_lossy(&text));
    }
    drop(sending.await??);
    server.stop().await
}
