//! The jobs that follow from a load, sources, and recalculations.

use anyhow::{Context as _, Result};
use pitwheel::State;
use pitwheel_ingest::{CsvOptions, Lane, LaneFilter, Method, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{TestIngest, entries, lane};

const FACTORS: &str = "category,measure,kg_co2e\nflight,km,0.25\n";

fn factors(method: Method) -> Lane {
    Lane { target: Target::Factors, method, entry_type: None, year: None, ..lane() }
}

/// What was computed for a lane: kilograms, or `None` without a factor.
async fn emitted(test: &TestIngest, lane: &Lane) -> Result<Vec<Option<f64>>> {
    let computed = Lane { method: Method::Computed, ..lane.clone() };
    let current = test.current(&computed).await?.context("nothing was computed")?;
    let rows = test.ingest.rows(current.id, 0, 100).await?;
    rows.iter()
        .map(|(_, data)| Ok(serde_json::from_str::<serde_json::Value>(data)?["kg_co2e"].as_f64()))
        .collect()
}

#[tokio::test]
async fn entries_lead_to_factors_and_then_to_emissions() -> Result<()> {
    let test = TestIngest::new().await?;
    let source = test.folder.path().join("factors.txt");
    std::fs::write(&source, FACTORS)?;
    test.ingest.set_source(&factors(Method::Api), &source.to_string_lossy()).await?;
    let first = test.upload(&lane(), entries(&["100", "300"]), &CsvOptions::default()).await?;
    test.run_all().await?;

    assert_eq!(emitted(&test, &lane()).await?, [Some(100.0)]);
    let jobs = test.ingest.jobs(&LaneFilter::default(), None, 100).await?;
    let mut kinds: Vec<&str> = jobs.iter().map(|job| &*job.sync.kind).collect();
    kinds.reverse();
    assert_eq!(kinds[..2], ["csv_ingest", "factor_ingest"]);
    assert!(kinds[2..].iter().all(|kind| *kind == "emission_recalc") && kinds.len() > 2, "{kinds:?}");
    assert!(jobs.iter().all(|job| job.sync.pipeline == first), "one chain");
    assert!(jobs.iter().all(|job| job.job.as_ref().is_some_and(|job| job.state == State::Done)));
    Ok(())
}

#[tokio::test]
async fn a_recalculation_is_of_one_entry_type_or_of_the_whole_module() -> Result<()> {
    let test = TestIngest::new().await?;
    let trains = Lane { entry_type: Some("trains".into()), ..lane() };
    for lane in [&lane(), &trains] {
        test.upload(lane, entries(&["100"]), &CsvOptions::default()).await?;
        test.run_all().await?;
        assert_eq!(emitted(&test, lane).await?, [None], "there is no factor yet");
    }
    // Factors of the module: everything is computed again.
    test.upload(&factors(Method::Csv), FACTORS, &CsvOptions::default()).await?;
    test.run_all().await?;
    assert_eq!(emitted(&test, &lane()).await?, [Some(25.0)]);
    assert_eq!(emitted(&test, &trains).await?, [Some(25.0)]);
    // A factor of one entry type goes before that of the module.
    let special = Lane { target: Target::Factors, year: None, ..trains.clone() };
    test.upload(&special, FACTORS.replace("0.25", "0.5"), &CsvOptions::default()).await?;
    test.run_all().await?;
    assert_eq!(emitted(&test, &lane()).await?, [Some(25.0)]);
    assert_eq!(emitted(&test, &trains).await?, [Some(50.0)]);

    let versions = "select count(*) from ingest.version v join ingest.lane l on l.id = v.lane_id where method = 'computed'";
    let before = test.db.count(versions).await?;
    let one = Lane { method: Method::Computed, ..trains.clone() };
    let id = test.ingest.sync(&one, &CsvOptions::default(), "test").await?;
    assert_eq!(test.run(id).await?.summary.state, State::Done);
    assert_eq!(test.db.count(versions).await?, before + 1);
    let module = Lane { entry_type: None, year: None, ..one };
    test.ingest.sync(&module, &CsvOptions::default(), "test").await?;
    test.run_all().await?;
    assert_eq!(test.db.count(versions).await?, before + 3);
    Ok(())
}

#[tokio::test]
async fn units_are_read_from_a_server() -> Result<()> {
    let test = TestIngest::new().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/units.csv?all", listener.local_addr()?);
    let served = tokio::spawn(async move {
        // The first answer is an error, the second is cut off.
        let body = "code,name,parent\nit,Computing,\ndb,Databases,it\n";
        let length = body.len();
        for answer in [
            "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\ncode,name"),
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"),
        ] {
            let (mut stream, _) = listener.accept().await?;
            let mut head = [0; 1024];
            let read = stream.read(&mut head).await?;
            assert!(head[..read].starts_with(b"GET /units.csv?all HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await?;
        }
        anyhow::Ok(())
    });
    let units =
        Lane { module: None, entry_type: None, year: None, target: Target::Units, method: Method::Api };
    assert!(test.ingest.sync(&units, &CsvOptions::default(), "test").await.is_err(), "it has no source");
    test.ingest.set_source(&units, &url).await?;
    let id = test.ingest.sync(&units, &CsvOptions::default(), "test").await?;
    let job = test.run(id).await?;

    assert_eq!((job.summary.state, &*job.summary.kind), (State::Done, "unit_sync"));
    assert_eq!(job.summary.attempt, 3);
    assert_eq!(test.current(&units).await?.map(|current| current.rows), Some(2));
    assert_eq!(test.db.count("select count(*) from ingest.unit where parent = 'it'").await?, 1);
    assert_eq!(test.files()?, 0);
    served.await??;
    Ok(())
}
