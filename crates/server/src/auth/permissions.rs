//! Which permission a request needs, by its method and path. It is checked before the body is read: a large body of a
//! caller who may not send it costs nothing.

use axum::http::Method;

use crate::auth::caller::Permission;

/// The permission for a request that has a body. `None`: its handler checks the caller, and reads no body before.
pub(crate) fn needed(method: &Method, path: &str) -> Option<Permission> {
    if let Some(call) = path.strip_prefix("/pitwheel.v1.") {
        return Some(match call {
            "JobService/Enqueue" => Permission::Enqueue,
            "JobService/GetJob" => Permission::ViewJob,
            "JobService/CancelJob" => Permission::Operate,
            "RecurringService/CreateRecurring" => Permission::Enqueue,
            "RecurringService/GetRecurring" | "RecurringService/ListRunTimes" => Permission::ViewJob,
            "PipelineService/CreatePipeline" => Permission::Enqueue,
            "PipelineService/GetPipeline" => Permission::ViewJob,
            _ if call.starts_with("RecurringService/") => Permission::Operate,
            _ if call.starts_with("PipelineService/") => Permission::Operate,
            _ if call.starts_with("WorkerService/") => Permission::Work,
            _ => return None,
        });
    }
    let resource = path.strip_prefix("/api/v1/")?;
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        return None;
    }
    match resource.split('/').next()? {
        "jobs" if resource == "jobs" => Some(Permission::Enqueue),
        "recurring" if resource == "recurring" => Some(Permission::Enqueue),
        "pipelines" if resource == "pipelines" => Some(Permission::Enqueue),
        "jobs" | "outbox" | "pipelines" | "queues" | "recurring" | "workers" => Some(Permission::Operate),
        "kinds" | "tokens" => Some(Permission::Administer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_a_body_need_a_permission() {
        for (method, path, permission) in [
            (Method::POST, "/pitwheel.v1.JobService/Enqueue", Some(Permission::Enqueue)),
            (Method::POST, "/pitwheel.v1.WorkerService/ReportResult", Some(Permission::Work)),
            (Method::POST, "/api/v1/jobs", Some(Permission::Enqueue)),
            (Method::POST, "/api/v1/jobs/cancel", Some(Permission::Operate)),
            (Method::POST, "/api/v1/recurring", Some(Permission::Enqueue)),
            (Method::PUT, "/api/v1/recurring/7/cadence", Some(Permission::Operate)),
            (Method::POST, "/api/v1/pipelines", Some(Permission::Enqueue)),
            (Method::POST, "/api/v1/pipelines/7/cancel", Some(Permission::Operate)),
            (Method::POST, "/api/v1/outbox/unpark", Some(Permission::Operate)),
            (Method::POST, "/api/v1/outbox/replay", Some(Permission::Operate)),
            (Method::PUT, "/api/v1/kinds/work", Some(Permission::Administer)),
            (Method::POST, "/api/v1/tokens", Some(Permission::Administer)),
            (Method::GET, "/api/v1/jobs", None),
            (Method::POST, "/invoices/send", None),
        ] {
            assert_eq!(needed(&method, path), permission, "{method} {path}");
        }
    }
}
