import { Link } from '@tanstack/react-router';
import { DropdownMenu } from 'radix-ui';
import { type ReactNode, useState } from 'react';
import { isRun, type Work } from '../api/client';
import { actions, useAction, useActive, useOne } from '../api/queries';
import { shortId } from '../model/format';
import {
  asksYou,
  canMerge,
  canMergeAnyway,
  hasEnded,
  isPausing,
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
import { MarkItems, useSeen } from './marks';
import { MergeDialog } from './merge_dialog';
import { Questions } from './questions';
import { WorkLink } from './work_link';

/** Where a piece of work is: its project, what it belongs to, its id. */
export function Crumbs({ work }: { work: Work }) {
  const parent = parentOf(work);
  return (
    <nav className="crumbs" aria-label="Where you are">
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

type Asking = 'merge' | 'cancel' | null;

/** The title, the verdict, and what one can do about it. */
export function Head({ work, children }: { work: Work; children?: ReactNode }) {
  const [asking, ask] = useState<Asking>(null);
  const now = useNow();
  const active = useActive().work;
  const inside = active.filter((other) => parentOf(other) === work.id && other.status === 'running');
  const titles = inside.map(({ title }) => title).reverse();
  const [bold, rest] = verdict(work, now, titles);
  const merge = canMerge(work);
  const cancel = !hasEnded(work);
  useSeen(work);
  useKeys({
    m: () => merge && ask('merge'),
    x: () => cancel && ask('cancel'),
    a: () => document.querySelector<HTMLElement>('.asked .field')?.focus(),
  });
  return (
    <div className="subject">
      <div className="head">
        <div className="grow">
          <h1>
            <Said>{work.title}</Said>
          </h1>
          <p className="verdict">
            <Glyph state={stateOf(work)} />
            <span>
              <b>{bold}</b> <Said>{rest}</Said>
            </span>
          </p>
        </div>
        <Actions work={work} ask={ask} />
      </div>
      {asksYou(work) && (
        <div className="panel asked">
          <Questions work={work} />
        </div>
      )}
      {children}
      {asking === 'merge' && <MergeDialog work={work} close={() => ask(null)} />}
      {asking === 'cancel' && <CancelDialog work={work} close={() => ask(null)} />}
    </div>
  );
}

function Actions({ work, ask }: { work: Work; ask: (what: Asking) => void }) {
  const held = useHeld();
  const pause = useAction((action: 'pause' | 'resume') => actions.run(work.id, action));
  const again = useAction((action: 'retry' | 'requeue') => actions.task(work.id, action));
  const archive = useAction(() =>
    isRun(work) ? actions.run(work.id, 'archive') : actions.task(work.id, 'archive'),
  );
  const error = pause.error ?? again.error ?? archive.error;
  const ended = hasEnded(work);
  const pauses = isPausing(work) || (isRun(work) && work.status === 'paused');
  const runs = isRun(work) && work.status === 'running' && !pauses;
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
        {canMergeAnyway(work) && <Act onClick={() => ask('merge')}>Merge all the same</Act>}
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
        {!isRun(work) && ended && work.status !== 'completed' && (
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
                Copy its id
              </DropdownMenu.Item>
              <MarkItems work={work} />
              {!isRun(work) && ended && (
                <DropdownMenu.Item disabled={held.disabled} onSelect={() => again.mutate('requeue')}>
                  From the start, queued anew
                </DropdownMenu.Item>
              )}
              {ended && (
                <DropdownMenu.Item disabled={held.disabled} onSelect={() => archive.mutate(undefined)}>
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
          ? 'Its agents are stopped with every process they started, and it ends. '
          : 'Its agent is stopped with every process it started. '}
        What is on its branch stays there.
      </p>
      <Problem error={cancel.error} />
      <div className="acts">
        <Act
          look="danger"
          disabled={cancel.isPending}
          onClick={() => cancel.mutate(undefined, { onSuccess: close })}
        >
          {cancel.isPending ? 'Cancelling' : 'Cancel it'}
        </Act>
        <Button look="quiet" onClick={close}>
          Leave it
        </Button>
      </div>
    </Dialog>
  );
}

export interface Tab {
  name: string;
  label: string;
  count?: string | number | null;
}

/** The parts of a view, each with an address of its own. */
export function Tabs({ work, tabs, current }: { work: Work; tabs: Tab[]; current: string }) {
  return (
    <nav className="tabs" aria-label="Parts">
      {tabs.map(({ name, label, count }, place) => (
        <WorkLink
          key={name}
          work={work}
          tab={place === 0 ? undefined : name}
          className={name === current ? 'on' : ''}
        >
          {label}
          {count !== undefined && count !== null && <span className="n">{count}</span>}
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
