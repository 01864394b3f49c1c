//! The position of a row in its table, which saves an index lookup.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The `ctid` of a row version, in the binary form of Postgres. A later version of the row has another one, and the position
/// may be reused for another row: a statement that uses it must also compare the id.
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
