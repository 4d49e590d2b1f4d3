CREATE FUNCTION compaction_store.event_header(p_kind text, p_critical boolean, p_actor text, p_login text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.text_field('event')
        || compaction_store.text_field(p_kind)
        || compaction_store.flag_field(p_critical)
        || compaction_store.text_field(p_actor)
        || compaction_store.text_field(p_login)
$$;
