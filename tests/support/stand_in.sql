-- The parts of Citus that `distribute` and `verify` call, on one server. They record the calls and distribute nothing.
SET allow_system_table_mods = on;
CREATE TABLE public.asked (i bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL);
CREATE TABLE pg_catalog.pg_dist_node (isactive bool, noderole text, shouldhaveshards bool, hasmetadata bool);
CREATE TABLE pg_catalog.pg_dist_shard (shardid bigint);
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char", partkey text, colocationid int4);
CREATE TABLE pg_catalog.pg_dist_local_group (groupid int4);
CREATE TABLE pg_catalog.pg_dist_placement (shardid bigint, groupid int4);
GRANT SELECT ON pg_catalog.pg_dist_node, pg_catalog.pg_dist_shard, pg_catalog.pg_dist_partition,
    pg_catalog.pg_dist_local_group, pg_catalog.pg_dist_placement TO PUBLIC;
INSERT INTO pg_catalog.pg_dist_node VALUES (true, 'primary', true, true);
INSERT INTO pg_catalog.pg_dist_local_group VALUES (0);
INSERT INTO pg_catalog.pg_dist_placement SELECT shardid, 0 FROM generate_series(102008, 102011) AS shardid;
CREATE FUNCTION pg_catalog.column_to_column_name(p_table regclass, p_key text) RETURNS text
LANGUAGE sql AS 'SELECT p_key';
CREATE FUNCTION pg_catalog.create_distributed_table(p_table regclass, p_column text, colocate_with text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_policy AS p WHERE p.polrelid = p_table AND pg_get_expr(p.polqual, p.polrelid) ~ 'SELECT'
    ) THEN
        RAISE EXCEPTION 'Subqueries are not supported in policies on distributed tables' USING ERRCODE = '0A000';
    END IF;
    IF EXISTS (
        SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attname = p_column
        WHERE i.indrelid = p_table AND i.indisunique AND NOT a.attnum = ANY (i.indkey)
    ) THEN
        RAISE EXCEPTION 'Distributed relations cannot have UNIQUE constraints without the partition column'
            USING ERRCODE = '0A000';
    END IF;
    IF current_setting('citus.enable_unsafe_triggers') <> 'on' THEN
        RAISE EXCEPTION 'triggers are not supported on distributed tables';
    END IF;
    INSERT INTO public.asked (what) VALUES (format(
        'table %s by %s with %s, %s shards, %s', p_table, p_column, colocate_with,
        coalesce(nullif(current_setting('citus.shard_count', true), ''), 'as many as usual'),
        current_setting('citus.multi_shard_modify_mode')
    ));
    INSERT INTO pg_catalog.pg_dist_partition VALUES (p_table, 'h', p_column, 1);
    INSERT INTO pg_catalog.pg_dist_shard VALUES (102007 + currval('public.asked_i_seq'));
END
$$;
-- As with Citus, existing rows stay in the node's own table; here no other node has them.
CREATE FUNCTION pg_catalog.truncate_local_data_after_distributing_table(p_table regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.asked (what) VALUES (format(
        'emptied %s, trigger %s, propagation %s', p_table,
        (SELECT tgenabled FROM pg_trigger WHERE tgrelid = p_table AND tgname = 'refuse_truncate'),
        current_setting('citus.enable_ddl_propagation')
    ));
END
$$;
CREATE FUNCTION pg_catalog.create_distributed_function(
    p_function regprocedure, p_argument text DEFAULT NULL, colocate_with text DEFAULT 'default',
    force_delegation boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.asked (what) VALUES (format(
        'function %s by %s with %s%s', p_function, p_argument, colocate_with,
        CASE WHEN force_delegation THEN ', in transactions' ELSE '' END
    ));
END
$$;
-- A table has four shards.
CREATE FUNCTION pg_catalog.get_shard_id_for_distribution_column(p_table regclass, p_value anyelement) RETURNS bigint
LANGUAGE sql AS 'SELECT 102008 + (hashtextextended(p_value::text, 0) & 3)';
CREATE FUNCTION pg_catalog.run_command_on_shards(p_table regclass, p_command text)
RETURNS TABLE (shardid bigint, success bool, result text)
LANGUAGE plpgsql AS $$
BEGIN
    shardid := 102008;
    success := true;
    EXECUTE replace(p_command, '%s', p_table::text) INTO result;
    RETURN NEXT;
END
$$;
CREATE FUNCTION pg_catalog.run_command_on_workers(p_command text)
RETURNS TABLE (nodename text, nodeport int4, success bool, result text)
LANGUAGE plpgsql AS $$
BEGIN
    nodename := 'node-1';
    nodeport := 5432;
    success := true;
    EXECUTE p_command INTO result;
    RETURN NEXT;
END
$$;
CREATE FUNCTION pg_catalog.get_rebalance_table_shards_plan(rebalance_strategy name) RETURNS SETOF bigint
LANGUAGE sql AS 'SELECT shardid FROM pg_catalog.pg_dist_shard LIMIT 3';
CREATE FUNCTION pg_catalog.rebalance_table_shards(shard_transfer_mode text, rebalance_strategy name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.asked (what) VALUES (format(
        'moved, %s, %s, owner %s', shard_transfer_mode, rebalance_strategy,
        (SELECT rolcanlogin FROM pg_roles WHERE rolname = 'compaction_store_owner')
    ));
END
$$;
INSERT INTO pg_catalog.pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
VALUES (99001, 'citus', 10, 11, false, '13.2-1');
