//! Where a row stood: a hint that saves finding it by its id.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The `ctid` of a row version, as binary as Postgres sends it. A later version of the row stands elsewhere, and the place
/// may be given to another row: whoever goes by it must compare what it finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ctid([u8; 6]);

impl<'a> FromSql<'a> for Ctid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Ctid, Box<dyn Error + Sync + Send>> {
        Ok(Ctid(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }
}

impl ToSql for Ctid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }

    to_sql_checked!();
}
