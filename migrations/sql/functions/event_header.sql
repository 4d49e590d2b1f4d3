CREATE FUNCTION compaction_store.event_header(p_kind text, p_actor text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.text_field('event')
        || compaction_store.text_field(p_kind)
        || compaction_store.text_field(p_actor)
$$;
