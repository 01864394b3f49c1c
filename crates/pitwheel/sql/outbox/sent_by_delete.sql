-- sent_by_delete.sql: the part of sent_entities.sql for a source whose delivered events are deleted.
    delete from {table} as source
