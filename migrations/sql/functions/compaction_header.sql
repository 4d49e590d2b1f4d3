CREATE FUNCTION compaction_store.compaction_header(p_record compaction_store.compactions) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.text_field('compaction')
        || compaction_store.text_field(p_record.kind)
        || compaction_store.text_field(p_record.outcome)
        || compaction_store.number_field(p_record.start_seq)
        || compaction_store.number_field(p_record.end_seq)
        || compaction_store.number_field(p_record.tokens_before)
        || compaction_store.number_field(p_record.tokens_after)
        || compaction_store.number_field(p_record.source_count)
        || compaction_store.field(p_record.source_before)
        || compaction_store.field(p_record.source_end)
        || compaction_store.field(COALESCE(
            (SELECT pg_catalog.string_agg(pg_catalog.int8send(n), ''::bytea ORDER BY i)
             FROM pg_catalog.unnest(p_record.inputs) WITH ORDINALITY AS u (n, i)),
            ''::bytea))
        || compaction_store.field(pg_catalog.uuid_send(p_record.run_id))
        || compaction_store.text_field(p_record.callback)
        || compaction_store.text_field(p_record.trigger)
        || compaction_store.text_field(p_record.actor)
        || compaction_store.text_field(p_record.login)
        || compaction_store.text_field(p_record.model)
        || compaction_store.text_field(p_record.counter)
        || compaction_store.number_field(p_record.revokes)
$$;
