import { Link } from '@tanstack/react-router';
import { DropdownMenu } from 'radix-ui';
import { type ReactNode, useLayoutEffect, useRef, useState } from 'react';
import { useActivity } from '../api/activity';
import { isRun, type Work } from '../api/client';
import { actions, useAction, useActive, useOne } from '../api/queries';
import { shortId, visible } from '../model/format';
import {
  asksYou,
  canMerge,
  canMergeAnyway,
  hasEnded,
  isPausing,
  latest,
  parentOf,
  stateOf,
  verdict,
} from '../model/work';
import { Button, Problem } from '../parts/controls';
import { Dialog } from '../parts/dialog';
import { Glyph } from '../parts/glyph';
import { Icon } from '../parts/icon';
import { Said, useNow } from '../parts/text';
import { useKeys } from '../shell/keys';
import { Act, useHeld } from './act';
import { Marked, MarkItems, useSeen } from './marks';
import { MergeDialog, UndoMergeDialog } from './merge_dialog';
import { Questions } from './questions';
import { lineText } from './task/line_text';
import { WorkLink } from './work_link';

/** The breadcrumbs of work: project, parent run and id. */
export function Crumbs({ work }: { work: Work }) {
  const parent = parentOf(work);
  return (
    <nav className="crumbs" aria-label="Breadcrumbs">
      <Link to="/work">Work</Link>
      <span className="slash">/</span>
      {work.project && (
        <>
          <Link to="/work" search={{ q: `project:${work.project}` }}>
            <Said>{work.project}</Said>
          </Link>
          <span className="slash">/</span>
        </>
      )}
      {parent && <ParentCrumb id={parent} />}
      <span aria-current="page">
        {isRun(work) && work.pattern} <code>{shortId(work.id)}</code>
      </span>
    </nav>
  );
}

function ParentCrumb({ id }: { id: string }) {
  const parent = useOne(id);
  return (
    <>
      <Link to="/runs/$id/{-$tab}" params={{ id }}>
        <Said>{parent.data?.title ?? shortId(id)}</Said>
      </Link>
      <span className="slash">/</span>
    </>
  );
}

type Asking = 'merge' | 'undo' | 'cancel' | 'archive' | null;

/** The title, the verdict, and what one can do about it. */
export function Head({ work, children }: { work: Work; children?: ReactNode }) {
  const [asking, ask] = useState<Asking>(null);
  const now = useNow();
  const active = useActive().work;
  const inside = active.filter((other) => parentOf(other) === work.id && other.status === 'running');
  const titles = inside.map(({ title }) => title).reverse();
  const [bold, rest] = verdict(work, now, titles);
  const last = isRun(work) ? undefined : latest(work);
  const merge = canMerge(work);
  const cancel = !hasEnded(work);
  useSeen(work);
  useKeys({
    m: () => merge && ask('merge'),
    x: () => cancel && ask('cancel'),
    a: () => document.querySelector<HTMLElement>('.asked .field')?.focus(),
  });
  return (
    <>
      <div className="subject stays" ref={useStays()}>
        <div className="head">
          <h1 className="grow" title={visible(work.title)}>
            <Said>{work.title}</Said>
          </h1>
          <Actions work={work} ask={ask} />
        </div>
      </div>
      <div className="subject about">
        <p className="verdict">
          <Glyph state={stateOf(work)} />
          <span>
            <b>{bold}</b> <Said>{rest}</Said>
            {last?.status === 'running' && !work.checking && <Doing attempt={last.id} />}
          </span>
        </p>
        <Marked work={work} />
        {asksYou(work) && (
          <div className="panel asked">
            <Questions work={work} />
          </div>
        )}
        {children}
      </div>
      {asking === 'merge' && <MergeDialog work={work} close={() => ask(null)} />}
      {asking === 'undo' && <UndoMergeDialog work={work} close={() => ask(null)} />}
      {asking === 'cancel' && <CancelDialog work={work} close={() => ask(null)} />}
      {asking === 'archive' && <ArchiveDialog work={work} close={() => ask(null)} />}
    </>
  );
}

/** The current action of an attempt's agent. */
function Doing({ attempt }: { attempt: string }) {
  const activity = useActivity(attempt);
  const [name, text] = [activity?.name ?? '', activity ? lineText(activity) : ''];
  if (activity?.kind !== 'tool_call' || !(name || text)) return null;
  return (
    <>
      {' '}
      Running <Said className="mono">{text || name}</Said>
    </>
  );
}

/** Title and actions stay in sight; what stays below them begins at their height. */
function useStays() {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const { style } = document.documentElement;
    const watch = new ResizeObserver(
      () => box.current && style.setProperty('--head', `${box.current.offsetHeight}px`),
    );
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return box;
}

function Actions({ work, ask }: { work: Work; ask: (what: Asking) => void }) {
  const held = useHeld();
  const pause = useAction((action: 'pause' | 'resume') => actions.run(work.id, action));
  const again = useAction((action: 'retry' | 'requeue') => actions.task(work.id, action));
  const error = pause.error ?? again.error;
  const ended = hasEnded(work);
  const pauses = isPausing(work) || (isRun(work) && work.status === 'paused');
  const runs = isRun(work) && work.status === 'running' && !pauses;
  const archived = work.archived_at !== null;
  useKeys({
    p: () => runs && !held.disabled && pause.mutate('pause'),
    r: () =>
      pauses
        ? !held.disabled && pause.mutate('resume')
        : document.querySelector<HTMLElement>('.composer textarea')?.focus(),
  });
  return (
    <div>
      <div className="actions">
        {canMerge(work) && (
          <Act look="primary" hotkey="m" onClick={() => ask('merge')}>
            <Icon name="merge" />
            Merge into {work.workspace.base ?? 'base'}
          </Act>
        )}
        {canMergeAnyway(work) && <Act onClick={() => ask('merge')}>Merge anyway</Act>}
        {work.merged_at && !archived && !parentOf(work) && <Act onClick={() => ask('undo')}>Undo merge</Act>}
        {runs && (
          <Act hotkey="p" onClick={() => pause.mutate('pause')}>
            <Icon name="pause" />
            Pause
          </Act>
        )}
        {pauses && (
          <Act look="primary" hotkey="r" onClick={() => pause.mutate('resume')}>
            Resume
          </Act>
        )}
        {!isRun(work) && ended && !archived && work.status !== 'completed' && (
          <Act onClick={() => again.mutate('retry')}>Retry</Act>
        )}
        {!ended && (
          <Act look="danger" hotkey="x" onClick={() => ask('cancel')}>
            Cancel
          </Act>
        )}
        <DropdownMenu.Root modal={false}>
          <DropdownMenu.Trigger className="btn icon" aria-label="More">
            <Icon name="more" />
          </DropdownMenu.Trigger>
          <DropdownMenu.Portal>
            <DropdownMenu.Content className="menu" align="end" sideOffset={4}>
              <DropdownMenu.Item onSelect={() => navigator.clipboard.writeText(work.id)}>
                Copy ID
              </DropdownMenu.Item>
              <MarkItems work={work} />
              {!isRun(work) && ended && !archived && (
                <DropdownMenu.Item disabled={held.disabled} onSelect={() => again.mutate('requeue')}>
                  Restart from scratch
                </DropdownMenu.Item>
              )}
              {ended && !archived && (
                <DropdownMenu.Item disabled={held.disabled} onSelect={() => ask('archive')}>
                  Archive
                </DropdownMenu.Item>
              )}
            </DropdownMenu.Content>
          </DropdownMenu.Portal>
        </DropdownMenu.Root>
      </div>
      <Problem error={error} />
    </div>
  );
}

function CancelDialog({ work, close }: { work: Work; close: () => void }) {
  const cancel = useAction(() =>
    isRun(work) ? actions.run(work.id, 'cancel') : actions.task(work.id, 'cancel'),
  );
  return (
    <Dialog title="Cancel" close={close}>
      <p className="strong">
        <Said>{work.title}</Said>
      </p>
      <p className="dim">
        {isRun(work)
          ? 'The run ends; its agents and all their processes are stopped. '
          : 'The agent and all its processes are stopped. '}
        The branch keeps its work.
      </p>
      <Problem error={cancel.error} />
      <div className="acts">
        <Act
          look="danger"
          disabled={cancel.isPending}
          onClick={() => cancel.mutate(undefined, { onSuccess: close })}
        >
          {cancel.isPending ? 'Cancelling…' : `Cancel the ${isRun(work) ? 'run' : 'task'}`}
        </Act>
        <Button look="quiet" onClick={close}>
          Back
        </Button>
      </div>
    </Dialog>
  );
}

function ArchiveDialog({ work, close }: { work: Work; close: () => void }) {
  const archive = useAction(() =>
    isRun(work) ? actions.run(work.id, 'archive') : actions.task(work.id, 'archive'),
  );
  return (
    <Dialog title="Archive" close={close}>
      <p className="strong">
        <Said>{work.title}</Said>
      </p>
      <p className="dim">
        {isRun(work)
          ? 'The run and its tasks disappear from lists, and their worktrees are removed. '
          : 'The task disappears from lists and cannot be continued; its worktree is removed. '}
        Commits stay on the branch; other changes are stored under refs/kapelle/archive. This cannot be
        undone.
      </p>
      <Problem error={archive.error} />
      <div className="acts">
        <Button
          look="danger"
          disabled={archive.isPending}
          onClick={() => archive.mutate(undefined, { onSuccess: close })}
        >
          {archive.isPending ? 'Archiving…' : 'Archive'}
        </Button>
        <Button look="quiet" onClick={close}>
          Back
        </Button>
      </div>
    </Dialog>
  );
}

export interface Tab {
  name: string;
  label: string;
  count?: string | number | null;
  /** The reason why the tab needs the person. */
  waits?: string | null;
}

/** The parts of a view, each with an address of its own. */
export function Tabs({ work, tabs, current }: { work: Work; tabs: Tab[]; current: string }) {
  return (
    <nav className="tabs" aria-label="Parts">
      {tabs.map(({ name, label, count, waits }, place) => (
        <WorkLink
          key={name}
          work={work}
          tab={place === 0 ? undefined : name}
          className={name === current ? 'on' : ''}
        >
          {label}
          {count !== undefined && count !== null && <span className="n">{count}</span>}
          {waits && <span className="waits">{waits}</span>}
        </WorkLink>
      ))}
    </nav>
  );
}

export const Facts = ({ facts }: { facts: [string, ReactNode][] }) => (
  <dl className="kv">
    {facts.map(([name, value]) => (
      <div key={name} className="contents">
        <dt>{name}</dt>
        <dd>{value}</dd>
      </div>
    ))}
  </dl>
);
