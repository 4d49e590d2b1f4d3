-- Stages entries of a bundle on the node that has its thread. p_rows is a JSON list with one object for each entry;
-- times are microseconds since 1970. Rows of abandoned imports of this thread are removed. This function exists only on
-- a cluster, where a COPY through the coordinator would store the coordinator's transaction number instead of the
-- node's. A single server uses COPY, which needs no JSON.
CREATE OR REPLACE FUNCTION compaction_store.stage(p_thread_uid uuid, p_tenant text, p_type text, p_rows text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET work_mem = '64MB'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    DELETE FROM compaction_store.staged AS s
    WHERE s.thread_uid = p_thread_uid AND s.staged_by < pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    INSERT INTO compaction_store.staged (
        staged_by, thread_uid, type,
        ordinal, pos, created_at, redacted_pos, salt, commitment, entry, body, tokens, call_size, role, counter, key,
        receipt, meta_commitment, meta, critical, kind, outcome, start_seq, end_seq, tokens_before, tokens_after,
        source_count, revokes, run_id, callback, trigger, actor, login, model, inputs, source_before, source_end
    )
    SELECT pg_current_xact_id()::text::bigint, p_thread_uid, p_type,
        s.ordinal, s.pos,
        'epoch'::timestamptz + interval '1 second' * (s.created_at / 1000000)
            + interval '1 microsecond' * (s.created_at % 1000000),
        s.redacted_pos, s.salt, s.commitment, s.entry, s.body, s.tokens, s.call_size, s.role, s.counter, s.key,
        s.receipt, s.meta_commitment, s.meta, s.critical, s.kind, s.outcome, s.start_seq, s.end_seq, s.tokens_before,
        s.tokens_after, s.source_count, s.revokes, s.run_id, s.callback, s.trigger, s.actor, s.login, s.model, s.inputs,
        s.source_before, s.source_end
    FROM json_to_recordset(p_rows::json) AS s (
        ordinal bigint, pos bigint, created_at bigint, redacted_pos bigint, salt bytea, commitment bytea,
        entry bytea, body text, tokens integer, call_size integer, role text, counter text, key text, receipt text,
        meta_commitment bytea, meta text, critical boolean, kind text, outcome text, start_seq bigint,
        end_seq bigint, tokens_before bigint, tokens_after bigint, source_count bigint, revokes bigint, run_id uuid,
        callback text, trigger text, actor text, login text, model text, inputs bigint[], source_before bytea,
        source_end bytea
    );
    PERFORM compaction_store.refuse_moved(
        get_shard_id_for_distribution_column('compaction_store.staged', p_thread_uid)
    );
END
$$;
