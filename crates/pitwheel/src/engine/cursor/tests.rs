use super::*;

fn at(seconds: u64) -> Position {
    Position { run_at: UNIX_EPOCH + Duration::from_secs(seconds), id: 1 }
}

fn snapshot(seconds: u64, oldest_xid: i64, own_xid: i64) -> Snapshot {
    Snapshot { seen_at: at(seconds).run_at, oldest_xid, own_xid, server_started_at: UNIX_EPOCH }
}

/// A cursor whose claims have read up to a position of priority 0, and whose first look back was made.
fn cursor_at(position: Position) -> Cursor {
    let mut cursor = Cursor::new(["q"].into_iter());
    assert!(look(&mut cursor, snapshot(2, 1, 1), None));
    raise_now(&mut cursor, position);
    cursor
}

fn raise(cursor: &mut Cursor, position: Position, lowered: u64) {
    let at = cursor.order.level_of("q", 0).unwrap();
    cursor.levels[at].raise(position, lowered);
}

fn raise_now(cursor: &mut Cursor, position: Position) {
    let lowered = cursor.lowered;
    raise(cursor, position, lowered);
}

fn level(cursor: &Cursor) -> &Level {
    &cursor.levels[cursor.order.level_of("q", 0).unwrap()]
}

fn look(cursor: &mut Cursor, snapshot: Snapshot, first: Option<Position>) -> bool {
    let look = cursor.next_look(false);
    reply(cursor, &look, snapshot, first)
}

fn reply(cursor: &mut Cursor, look: &Look, snapshot: Snapshot, first: Option<Position>) -> bool {
    let levels = cursor.order.priorities.iter().map(|priority| match first.filter(|_| *priority == 0) {
        Some(first) => LevelLook::Behind { first, free: Some(first) },
        None => LevelLook::Empty,
    });
    let levels = levels.collect();
    cursor.looked_back(look, &LookedBack { snapshot, levels, suspects: false })
}

/// What the look reads of priority 0.
fn read(cursor: &Cursor, look: &Look) -> (Position, Position) {
    let at = cursor.order.level_of("q", 0).unwrap();
    let of = |bounds: &Bounds| bounds.positions().nth(at).unwrap();
    (of(&look.from), of(&look.to))
}

#[test]
fn a_job_left_behind_moves_the_bound_back_to_it() {
    let mut cursor = cursor_at(at(100));
    look(&mut cursor, snapshot(200, 5, 6), Some(at(50)));
    assert!(level(&cursor).bound < at(50));
    assert!(level(&cursor).bound > at(49));
}

#[test]
fn the_floor_rises_only_when_every_transaction_of_its_time_has_ended() {
    let mut cursor = cursor_at(at(100));
    look(&mut cursor, snapshot(200, 5, 10), None);
    look(&mut cursor, snapshot(201, 9, 20), None);
    assert_eq!(level(&cursor).floor, Position::BOTTOM);
    look(&mut cursor, snapshot(202, 10, 30), None);
    assert_eq!(level(&cursor).floor, at(100));
}

#[test]
fn the_floor_keeps_its_margin_behind_the_clock() {
    let mut cursor = cursor_at(at(199));
    look(&mut cursor, snapshot(200, 5, 10), None);
    look(&mut cursor, snapshot(201, 10, 10), None);
    assert_eq!(level(&cursor).floor.run_at, at(198).run_at);
}

#[test]
fn a_job_left_behind_keeps_the_floor_down() {
    let mut cursor = cursor_at(at(100));
    look(&mut cursor, snapshot(200, 5, 10), None);
    look(&mut cursor, snapshot(201, 10, 20), Some(at(50)));
    assert_eq!(level(&cursor).floor, Position::BOTTOM);
}

#[test]
fn a_clock_that_goes_back_starts_over() {
    let mut cursor = cursor_at(at(100));
    look(&mut cursor, snapshot(200, 5, 5), None);
    look(&mut cursor, snapshot(201, 5, 5), None);
    assert_eq!(level(&cursor).floor, at(100));
    assert!(look(&mut cursor, snapshot(150, 6, 6), None), "it looks again at once");
    assert_eq!((level(&cursor).floor, level(&cursor).bound.run_at), (Position::BOTTOM, at(148).run_at));
    let from_the_start = cursor.next_look(false);
    assert_eq!(read(&cursor, &from_the_start).0, Position::BOTTOM);
}

#[test]
fn another_server_starts_over() {
    let mut cursor = cursor_at(at(100));
    look(&mut cursor, snapshot(200, 5, 5), None);
    look(&mut cursor, snapshot(201, 5, 5), None);
    assert_eq!(level(&cursor).floor, at(100));
    let other = |seconds| Snapshot { server_started_at: at(1).run_at, ..snapshot(seconds, 6, 6) };
    assert!(look(&mut cursor, other(202), None));
    assert_eq!((level(&cursor).floor, level(&cursor).bound.run_at), (Position::BOTTOM, at(200).run_at));
    assert!(!look(&mut cursor, other(203), None), "once for each server");
}

#[test]
fn no_claim_reads_from_the_start() {
    let mut cursor = Cursor::new(["q"].into_iter());
    let first = cursor.next_look(false);
    let (from, to) = read(&cursor, &first);
    assert_eq!(from, to, "the first look tells the time");
    assert!(reply(&mut cursor, &first, snapshot(100, 5, 6), None));
    assert_eq!(level(&cursor).bound.run_at, at(98).run_at);
    let second = cursor.next_look(false);
    assert_eq!(read(&cursor, &second).0, Position::BOTTOM, "it finds what waits");
}

#[test]
fn a_look_that_takes_too_long_is_made_in_slices_from_the_bound_down() {
    let mut cursor = cursor_at(at(1600));
    let whole = cursor.next_look(false);
    assert_eq!(read(&cursor, &whole), (Position::BOTTOM, at(1600)));
    cursor.took_too_long(&whole);

    let slice = cursor.next_look(false);
    assert_eq!(read(&cursor, &slice), (Position { id: 0, ..at(1500) }, at(1600)));
    reply(&mut cursor, &slice, snapshot(1700, 5, 6), None);
    assert!(cursor.is_in_pass());
    raise_now(&mut cursor, at(1650));
    let slice = cursor.next_look(true);
    assert_eq!(read(&cursor, &slice), (Position { id: 0, ..at(1400) }, Position { id: 0, ..at(1500) }));
    reply(&mut cursor, &slice, snapshot(1701, 5, 7), Some(at(1450)));
    assert!(level(&cursor).bound < at(1450), "it is claimed before the other slices are read");

    for _ in 0..20 {
        cursor.took_little();
    }
    let rest = cursor.next_look(false);
    assert_eq!(read(&cursor, &rest).0, Position::BOTTOM);
    reply(&mut cursor, &rest, snapshot(1702, 5, 8), None);
    assert!(!cursor.is_in_pass() && level(&cursor).mark.is_none(), "a job was found");
}

#[test]
fn the_first_slice_decides_which_transactions_were_open() {
    let mut cursor = cursor_at(at(1600));
    look(&mut cursor, snapshot(1700, 5, 10), None);
    let whole = cursor.next_look(false);
    cursor.took_too_long(&whole);
    let in_slices = |cursor: &mut Cursor, first: i64| {
        look(cursor, snapshot(1702, first, 20), None);
        while cursor.is_in_pass() {
            look(cursor, snapshot(1702, 15, 30), None);
        }
    };
    in_slices(&mut cursor, 9);
    assert_eq!(level(&cursor).floor, Position::BOTTOM);
    in_slices(&mut cursor, 10);
    assert_eq!(level(&cursor).floor, at(1600));
}

#[test]
fn a_claim_that_began_before_a_job_was_found_does_not_move_the_bound_past_it() {
    let mut cursor = cursor_at(at(100));
    let before = cursor.bounds().lowered;
    look(&mut cursor, snapshot(200, 5, 6), Some(at(50)));
    raise(&mut cursor, at(120), before);
    assert!(level(&cursor).bound < at(50));
    let after = cursor.bounds().lowered;
    raise(&mut cursor, at(120), after);
    assert_eq!(level(&cursor).bound, at(120));
}

#[test]
fn a_queue_has_its_levels_in_one_piece() {
    let bounds = Cursor::new(["a", "b"].into_iter()).bounds();
    assert_eq!((bounds.first_level("a"), bounds.first_level("b")), (1, 20));
    assert!(bounds.order.queues[19..38].iter().all(|queue| queue == "b"));
    assert_eq!(bounds.order.priorities[19..22], [9, 8, 7]);
}
