-- sent_by_mark.sql: the part of sent_entities.sql for a source whose delivered events are marked.
    update {table} as source
    set {mark} = {sent}
