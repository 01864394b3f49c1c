//! Every command has a help text with an example.

use crate::support::{Db, Result};

#[test]
fn the_help_of_every_command_leads_with_an_example() -> Result {
    let db = Db::empty()?;
    let mut left: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(path) = left.pop() {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = db.run(&args)?.with_code(0)?.out;
        let (lead, rest) = help.split_once("\nUsage:").ok_or("no usage")?;
        assert!(lead.contains("Example") && lead.contains("\n  "), "{path:?}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{path:?}: {help}");
        // A line that is too long is wrapped, which leaves a short line in the middle of its paragraph.
        let prose = lead.split("\n\n").filter(|paragraph| !paragraph.starts_with("Example"));
        let short = |line: &str| line.chars().count() < 70;
        let broken = prose.map(|text| text.lines().rev().skip(1)).any(|mut lines| lines.any(short));
        assert!(!broken, "{path:?}: {help}");
        seen += 1;
        let commands = rest.split_once("Commands:\n").map_or("", |(_, commands)| commands);
        let names = commands
            .lines()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_whitespace().next());
        left.extend(
            names.filter(|name| *name != "help").map(|name| [path.clone(), vec![name.to_owned()]].concat()),
        );
    }
    assert_eq!(
        seen,
        1 + 15 + 2 + 8 + 3 + 2 + 4 + 3 + 3 + 10 + 5 + 8,
        "this test and the binary know different commands"
    );
    Ok(())
}

#[test]
fn a_mistyped_command_is_a_usage_error() -> Result {
    let db = Db::empty()?;
    let wrong: [&[&str]; 7] = [
        &[],
        &["jobs"],
        &["jobs", "lst"],
        &["jobs", "show"],
        &["jobs", "show", "-1"],
        &["jobs", "list", "--state", "lost"],
        &["jobs", "list", "-o", "xml"],
    ];
    for args in wrong {
        let output = db.run(args)?.with_code(2)?;
        assert_eq!(output.out, "", "{args:?}");
        assert!(!output.err.is_empty(), "{args:?}");
    }
    assert!(db.run(&["jobs", "lst"])?.err.contains("'list'"));
    assert!(db.run(&["--version"])?.with_code(0)?.out.starts_with("pitwheel "));
    Ok(())
}
