import { type ComponentType, type ReactNode, useEffect, useState } from 'react';
import { Button, Empty, Loading } from './parts/controls';
import { useLink } from './shell/link';

const preloads: (() => Promise<unknown>)[] = [];

/** Load every part of the page, one after the other, so that all are there while the daemon is away. */
export async function preloadAll(): Promise<void> {
  // A part that is loaded may name further ones.
  for (let place = 0; place < preloads.length; place += 1) {
    await preloads[place]?.();
  }
}

/** A component that is loaded when it is shown or preloaded; where that fails, one can try again.
 * What is shown instead until then is framed. */
export function lazyPart<Props extends object>(
  load: () => Promise<ComponentType<Props>>,
  frame: (shown: ReactNode) => ReactNode = (shown) => shown,
) {
  let loaded: ComponentType<Props> | undefined;
  const read = async () => {
    loaded ??= await load();
  };
  const preload = () => read().catch(() => undefined);
  preloads.push(preload);
  const Part = (props: Props) => {
    const [state, setState] = useState<'loading' | 'failed' | 'loaded'>(loaded ? 'loaded' : 'loading');
    const isAway = useLink().state === 'away';
    useEffect(() => {
      if (state === 'loaded' || (state === 'failed' && isAway)) return;
      read().then(
        () => setState('loaded'),
        () => setState('failed'),
      );
    }, [state === 'loading', isAway]);
    if (loaded) {
      const Loaded = loaded;
      return <Loaded {...props} />;
    }
    if (state === 'failed') {
      return frame(
        <Empty title="This part of the page could not be loaded">
          <p>It loads automatically when the daemon is available again.</p>
          <Button onClick={() => setState('loading')}>Try again</Button>
        </Empty>,
      );
    }
    return frame(<Loading lines={8} />);
  };
  return Object.assign(Part, { preload });
}
