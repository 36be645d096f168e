BEGIN TRANSACTION;
CREATE TABLE accounts (
	id VARCHAR(120) NOT NULL, 
	paused_until BIGINT, 
	reason TEXT, 
	failures_in_a_row INTEGER DEFAULT '0' NOT NULL, 
	verified_at BIGINT, 
	CONSTRAINT pk_accounts PRIMARY KEY (id)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	id VARCHAR(40) NOT NULL, 
	task_id VARCHAR(40) NOT NULL, 
	number INTEGER NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	mode VARCHAR(10) NOT NULL, 
	message TEXT, 
	agent TEXT NOT NULL, 
	model TEXT, 
	model_reason TEXT, 
	account TEXT, 
	diagnosis TEXT, 
	exit_kind VARCHAR(20), 
	exit_code INTEGER, 
	exit_signal INTEGER, 
	reason TEXT, 
	claimed VARCHAR(20), 
	failure VARCHAR(20), 
	evidence TEXT, 
	warnings JSON NOT NULL, 
	started_from TEXT, 
	session_id TEXT, 
	input_tokens BIGINT, 
	output_tokens BIGINT, 
	cached_tokens BIGINT, 
	turns BIGINT, 
	cost_usd FLOAT, 
	session_usage JSON, 
	output_bytes BIGINT DEFAULT '0' NOT NULL, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT uq_attempts_task_id_number UNIQUE (task_id, number), 
	CONSTRAINT fk_attempts_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE
);
INSERT INTO "attempts" VALUES('attempt_01k40000000000000000000001','task_01k40000000000000000000000',1,'completed','fresh',NULL,'rehearsal',NULL,NULL,NULL,NULL,'exited',0,NULL,NULL,NULL,NULL,NULL,'[]',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,1788264000000000,1788264000000000);
CREATE TABLE checks (
	attempt_id VARCHAR(40) NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	passed BOOLEAN NOT NULL, 
	output TEXT NOT NULL, 
	duration_s FLOAT NOT NULL, 
	CONSTRAINT pk_checks PRIMARY KEY (attempt_id, position), 
	CONSTRAINT fk_checks_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE dependencies (
	task_id VARCHAR(40) NOT NULL, 
	depends_on VARCHAR(40) NOT NULL, 
	CONSTRAINT pk_dependencies PRIMARY KEY (task_id, depends_on), 
	CONSTRAINT fk_dependencies_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE, 
	CONSTRAINT fk_dependencies_depends_on FOREIGN KEY(depends_on) REFERENCES tasks (id) ON DELETE CASCADE
);
CREATE TABLE events (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at BIGINT NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	task_id VARCHAR(40), 
	attempt_id VARCHAR(40), 
	data JSON NOT NULL
);
CREATE TABLE task_tags (
	tag TEXT NOT NULL, 
	task_id VARCHAR(40) NOT NULL, 
	CONSTRAINT pk_task_tags PRIMARY KEY (tag, task_id), 
	CONSTRAINT fk_task_tags_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE
);
CREATE TABLE tasks (
	id VARCHAR(40) NOT NULL, 
	title TEXT NOT NULL, 
	prompt TEXT NOT NULL, 
	system_prompt TEXT, 
	agent TEXT NOT NULL, 
	model TEXT, 
	directory TEXT NOT NULL, 
	project TEXT, 
	status VARCHAR(20) NOT NULL, 
	reason TEXT, 
	waiting_for VARCHAR(20), 
	priority INTEGER NOT NULL, 
	deps_policy VARCHAR(20) NOT NULL, 
	continue_from VARCHAR(40), 
	fork_session BOOLEAN NOT NULL, 
	fallback_agents JSON NOT NULL, 
	timeout_s FLOAT, 
	max_turns INTEGER, 
	budget_usd FLOAT, 
	retry JSON NOT NULL, 
	check_specs JSON NOT NULL, 
	env JSON NOT NULL, 
	mcp JSON NOT NULL, 
	tags JSON NOT NULL, 
	context JSON NOT NULL, 
	requested_base TEXT, 
	workspace_kind VARCHAR(20) NOT NULL, 
	workspace_path TEXT NOT NULL, 
	workspace_branch TEXT, 
	workspace_base TEXT, 
	workspace_base_commit TEXT, 
	starting_tree TEXT, 
	workspace_commit TEXT, 
	created_at BIGINT NOT NULL, 
	started_at BIGINT, 
	ended_at BIGINT, 
	not_before BIGINT, 
	archived_at BIGINT, 
	merged_at BIGINT, 
	result TEXT, 
	next_mode VARCHAR(10) DEFAULT 'fresh' NOT NULL, 
	next_message TEXT, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	stop VARCHAR(20), 
	idempotency_key VARCHAR(200), 
	CONSTRAINT pk_tasks PRIMARY KEY (id), 
	CONSTRAINT uq_tasks_idempotency_key UNIQUE (idempotency_key)
);
INSERT INTO "tasks" VALUES('task_01k40000000000000000000000','An old task','Say hello.',NULL,'rehearsal',NULL,'/',NULL,'completed',NULL,NULL,1,'cancel',NULL,0,'[]',NULL,NULL,NULL,'{}','[]','[]','[]','[]','{}',NULL,'in_place','/',NULL,NULL,NULL,NULL,NULL,1788264000000000,NULL,1788264000000000,NULL,NULL,NULL,'hello','fresh',NULL,0,NULL,NULL);
CREATE INDEX ix_tasks_project_id ON tasks (project, id);
CREATE INDEX ix_tasks_archived_at_id ON tasks (archived_at, id);
CREATE INDEX ix_tasks_status_not_before ON tasks (status, not_before);
CREATE INDEX ix_tasks_status_priority_id ON tasks (status, priority, id);
CREATE INDEX ix_tasks_status_id ON tasks (status, id);
CREATE INDEX ix_events_task_id_seq ON events (task_id, seq);
CREATE INDEX ix_dependencies_depends_on ON dependencies (depends_on);
CREATE INDEX ix_attempts_status ON attempts (status);
DELETE FROM "sqlite_sequence";
COMMIT;
