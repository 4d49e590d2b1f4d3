CREATE FUNCTION compaction_store.compaction_header(p_record compaction_store.compactions) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT compaction_store.fields(ARRAY[
        'compaction'::bytea,
        pg_catalog.convert_to(p_record.kind, 'UTF8'),
        pg_catalog.convert_to(p_record.outcome, 'UTF8'),
        pg_catalog.int8send(p_record.start_seq),
        pg_catalog.int8send(p_record.end_seq),
        pg_catalog.int8send(p_record.tokens_before),
        pg_catalog.int8send(p_record.tokens_after),
        pg_catalog.int8send(p_record.source_count),
        p_record.source_before,
        p_record.source_end,
        COALESCE(
            (SELECT pg_catalog.string_agg(pg_catalog.int8send(n), ''::bytea ORDER BY i)
             FROM pg_catalog.unnest(p_record.inputs) WITH ORDINALITY AS u (n, i)),
            ''::bytea),
        pg_catalog.uuid_send(p_record.run_id),
        pg_catalog.convert_to(p_record.callback, 'UTF8'),
        pg_catalog.convert_to(p_record.trigger, 'UTF8'),
        pg_catalog.convert_to(p_record.actor, 'UTF8'),
        pg_catalog.convert_to(p_record.login, 'UTF8'),
        pg_catalog.convert_to(p_record.model, 'UTF8'),
        pg_catalog.convert_to(p_record.counter, 'UTF8'),
        pg_catalog.int8send(p_record.revokes)
    ])
$$;
